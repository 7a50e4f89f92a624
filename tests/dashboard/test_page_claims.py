"""What pages say to everybody: bars with names, links of their own, costs as alerts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from dash import dcc, html

from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun
from fsdpdoctor_dashboard.pages import memory, overview, ranks
from fsdpdoctor_dashboard.pages.components import Context
from tests.dashboard.client import Client
from tests.dashboard.said import opened, said, words_of
from tests.rig.changed import replace

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture
def run(library: Library) -> OpenRun:
    """A run with findings on four ranks."""
    return library.wait("before")


def page_of(module: Any, run: OpenRun) -> Any:
    """A page about one run."""
    return module.page(Context(base="/", theme="light", runs=(run,)))


def test_bars_say_what_they_show(run: OpenRun) -> None:
    """Each rank's bar can be reached by key, and has all its parts for a name."""
    stacks = [
        part
        for part in page_of(overview, run)._traverse()
        if isinstance(part, html.Div) and getattr(part, "className", "") == "stack"
    ]
    names = [getattr(stack, "aria-label", "") for stack in stacks]

    assert all(getattr(stack, "tabIndex", None) == 0 for stack in stacks)
    assert [name.split(":")[0] for name in names[:4]] == [
        f"rank {rank}" for rank in range(4)
    ]
    assert all("backward " in name and "forward " in name for name in names[:4])


def test_of_many_ranks_three_stand_for_all() -> None:
    """The fastest, the middle and the slowest."""
    steps = {rank: {"forward": 100 + rank % 5, "backward": 50} for rank in range(20)}

    assert overview.typical(steps) == [0, 12, 19]


def test_two_runs_have_one_scale(library: Library) -> None:
    """Bars of both are as long as their steps, the slowest fills its place."""
    both = tuple(library.wait(name) for name in ("before", "after"))
    page: Any = overview.page(Context(base="/", theme="light", runs=both))
    stacks: list[Any] = [
        part
        for part in page._traverse()
        if getattr(part, "aria-label", "").startswith("rank ")
    ]
    widths = [
        sum(float(piece.style["width"].rstrip("%")) for piece in stack.children)
        for stack in stacks
    ]
    steps = [
        float(rank.steps.duration_ns[rank.judged].mean())
        for run in both
        for rank in run.measures.ranks
    ]

    assert widths == pytest.approx([100 * ns / max(steps) for ns in steps], abs=0.01)
    assert min(widths) < 99


def test_links_to_places_have_names_of_their_own(run: OpenRun) -> None:
    """Whoever hears a list of links can tell them apart; none is within a heading."""
    page = page_of(overview, run)
    links = [
        words_of(part)
        for part in page._traverse()
        if isinstance(part, dcc.Link) and "Show on the timeline" in words_of(part)
    ]
    heads = [part for part in page._traverse() if isinstance(part, html.H3)]
    rows = Counter(f"{f.code} {f.name}" for f in run.report.findings if f.places)

    assert links
    assert Counter(w.removeprefix("Show on the timeline ") for w in links) == rows
    assert all("Show" not in words_of(head) for head in heads)


def test_a_dear_recording_is_an_alert_and_said_once(run: OpenRun) -> None:
    """From some per cent on figures are another run's; below it is a fact."""

    def told(share: float) -> tuple[list[str], int]:
        recorder = replace(run.report.recorder, overhead_share=share)
        report = replace(run.report, recorder=recorder)
        page = page_of(overview, replace(run, report=report))
        alerts = [
            words_of(part)
            for part in page._traverse()
            if getattr(part, "className", None) == "alert"
        ]
        words = [one.words for one in said("overview", page)]
        return alerts, sum(word.startswith("recorder: ") for word in words)

    alerts, lines = told(0.164)
    assert [alert for alert in alerts if "16.4 %" in alert] != []
    assert lines == 1
    assert [alert for alert in told(0.004)[0] if "Recording" in alert] == []


def test_memory_that_was_not_sampled_is_not_drawn() -> None:
    """A run whose samples lie outside its steps has no empty axes, and says why."""
    page = page_of(memory, opened(TRACES / "device-healthy"))
    words = " ".join(one.words for one in said("memory", page))
    graphs: list[Any] = [p for p in page._traverse() if isinstance(p, dcc.Graph)]
    drawn = [trace for graph in graphs for trace in graph.figure.data]

    assert "cannot tell" in words.lower()
    assert [trace.name for trace in drawn if not len(trace.x)] == []


def test_one_rank_is_no_failure_to_match_ranks() -> None:
    """Who is late cannot be told of it; and the maps' numbers say their unit."""
    page = page_of(ranks, opened(TRACES / "exposed-all-gather"))
    words = " ".join(one.words for one in said("ranks", page))

    assert "Cannot tell: there is one rank." in words
    assert "could not be matched" not in words
    assert "Of each judged step, by rank, in ms." in words


def test_without_scripts_there_are_words(admitted: Client) -> None:
    """They name the commands that need none."""
    page = admitted.get("/units?run=before")[1].decode()
    words = page.split("<noscript>")[1].split("</noscript>")[0]

    assert "fsdpdoctor analyze" in words
    assert "report --out report.html" in " ".join(words.split())
