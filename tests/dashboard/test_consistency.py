"""One meaning, one figure: on every page, in the terminal and in JSON.

Read without a browser: the pages' components and the other renderers' text of every
run of the gallery. What a figure has to be is worked out from the report's JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.changes.plan import plan_of
from fsdpdoctor.quantities import ms, size
from fsdpdoctor.renderers.formatting import unit_name
from fsdpdoctor.renderers.html import render as render_html
from fsdpdoctor.renderers.markdown import render as render_markdown
from fsdpdoctor.renderers.report_view import CAUSE_WORDS, content_of
from fsdpdoctor.renderers.tables import Table
from fsdpdoctor.renderers.text import render as render_text
from fsdpdoctor.report.value import encode
from fsdpdoctor.simulate.plans.forecast import replay_run
from fsdpdoctor.simulate.plans.predict import predict
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.ranks import MAKES_WAIT, REASON
from fsdpdoctor_dashboard.pages.whatif import prediction_words, replay_words
from tests.dashboard.said import Said, opened, pages_of, said
from tests.gallery.cases import CASES

TRACES = Path(__file__).parents[2] / "traces"

QUICK = (
    *("device-slow-wire", "killed-rank", "exposed-all-gather", "slow-rank"),
    *("device-allocator-retries", "optimizer-gathers", "adapters-only"),
    *("healthy-evaluation", "device-one-communicator", "device-early-retries"),
    "ddp-instead",
)
"""One of each kind: all of them take half a minute."""

EACH = [
    pytest.param(case, marks=() if case in QUICK else (pytest.mark.slow,))
    for case in CASES
]

MS = r"([\d.,]+ ms)"
BYTES = r"([\d.,]+ (?:[KMGT]i)?B)"


@cache
def shown(case: str) -> tuple[OpenRun, tuple[Said, ...]]:
    """A run, and all that its pages say."""
    run = opened(TRACES / case)
    return run, tuple(pages_of(run))


@cache
def words(case: str) -> dict[str, str]:
    """All text of each front end: each page, the terminal, Markdown and HTML."""
    run, pages = shown(case)
    texts: dict[str, str] = {}
    for one in pages:
        texts[one.page] = texts.get(one.page, "") + one.words + "\n"
    tags = re.compile(r"<[^>]*>")
    return texts | {
        "terminal": render_text(run.report),
        "markdown": render_markdown(run.report),
        "html": tags.sub("", render_html(run.report)),
    }


def facts(case: str) -> Any:
    """The report's JSON."""
    return json.loads(encode(shown(case)[0].report))


def meanings(report: Any) -> Iterator[tuple[str, str | None, str]]:
    """What is said in words: a meaning, its figure from JSON, and how it is said."""

    def time(ns: int | None) -> str | None:
        return None if ns is None else ms(ns)

    step, exposed = report["step_time_ns"], report["exposed_ns_per_step"]
    mean = time(step["mean"])
    for pattern in (
        rf"{MS} \(mean step\)",
        rf"Step budget: {MS}, mean step",
        rf"xposed [\d.,]+ ms of {MS} per step on average",
        rf"\([\d.,]+ ms of {MS} on average\)",
        rf"The mean step: now {MS}",
        rf"\(mean step {MS}\)",
        rf": a mean step of {MS}",
    ):
        yield "mean step", mean, pattern
    yield "median step", time(step["median"]), rf"step {MS} median"
    all_exposed = rf"xposed {MS} of [\d.,]+ ms per step on average"
    yield "exposed", time(exposed["total"]), all_exposed
    verdict = report["verdict"]
    yield "floor", time(verdict["floor_ns"]), rf"cannot go below {MS}"
    if (best := verdict["best_change"]) is not None:
        gain = time(best["predicted_gain_ns"])
        yield "gain", gain, rf"Best change: -{MS} per step"
        yield "gain", gain, rf"Best change[^,\n]*, wins {MS} per step"
        low, high = best["gain_range_ns"]
        yield "least gain", ms(low), rf"predicted {MS} to [\d.,-]+ ms"
        yield "most gain", ms(high), rf"predicted [\d.,-]+ ms to {MS}"
        if best["memory_cost_bytes"]:
            cost = size(abs(best["memory_cost_bytes"]))
            yield "memory", cost, rf"{BYTES} of memory per rank"
            yield "memory", cost, rf"predicted [^)]*, (?:costs|saves) {BYTES} per rank"
    if (first := verdict["most_to_gain"]) is not None:
        yield "most to gain", ms(first["up_to_ns"]), rf"Most to gain[:,] up to {MS}"


@pytest.mark.parametrize("case", EACH)
def test_figures_in_words_are_equal_everywhere(case: str) -> None:
    """The step, what is exposed, the floor, and what the best change gives and costs:
    wherever one is said, it is JSON's.
    """
    report = facts(case)
    wrong = [
        (meaning, where, found, expected)
        for meaning, expected, pattern in meanings(report)
        for where, text in words(case).items()
        for found in re.findall(pattern, re.sub(r"\s+", " ", text))
        if found != expected
    ]
    assert wrong == []


def test_every_way_of_saying_a_figure_is_met() -> None:
    """No pattern above reads nothing."""
    ways, met = set(), set()
    for case in QUICK:
        text = re.sub(r"\s+", " ", " ".join(words(case).values()))
        mine = {(meaning, way) for meaning, _, way in meanings(facts(case))}
        ways |= mine
        met |= {(meaning, way) for meaning, way in mine if re.search(way, text)}
    assert sorted(ways - met) == []


def cells(case: str, page: str, table: str) -> dict[tuple[str, int], dict[str, str]]:
    """A page's table: by its rows' names, the second of a name apart, the columns."""
    rows: dict[tuple[str, int], dict[str, str]] = {}
    seen: dict[str, int] = {}
    for one in shown(case)[1]:
        if one.page != page or one.table != table:
            continue
        number = seen.get(one.row, 0)
        if one.column in rows.get((one.row, number), {}):
            number += 1
        seen[one.row] = number
        rows.setdefault((one.row, number), {})[one.column] = one.words
    return rows


def in_terminal(table: Table | None, name: str) -> list[str]:
    """A column of the tables that the terminal, Markdown and HTML lay out."""
    if table is None:
        return []
    titles = [column.title for column in table.columns]
    if name not in titles:
        return []
    return [row[titles.index(name)].text for row in table.rows]


def time_cell(ns: int | None, absent: str) -> str:
    """A time as a page's table has it."""
    return absent if ns is None else ms(ns)


def bare(page_cell: str) -> str:
    """The same in a table whose head says milliseconds."""
    words = page_cell.removesuffix(" ms")
    return "-" if words == "not measured" else words


UNIT_COLUMNS: tuple[
    tuple[str, str, Callable[[Any], Any], Callable[[Any], str]], ...
] = (
    ("exposed in forward", "exp fwd", lambda u: u["exposed_ns"]["forward"], ms),
    ("exposed in backward", "exp bwd", lambda u: u["exposed_ns"]["backward"], ms),
    ("forward compute", "fwd ms", lambda u: u["forward_ns"], ms),
    ("backward compute", "bwd ms", lambda u: u["backward_ns"], ms),
    ("time unsharded", "unsh ms", lambda u: u["unsharded_ns"], ms),
    ("bytes gathered", "gather", lambda u: u["all_gather_bytes"], size),
    ("peak memory", "peak", lambda u: u["peak_bytes"], size),
)
"""Of the Units page, of the terminal, in JSON, and how it is written."""


@pytest.mark.parametrize("case", EACH)
def test_units_are_the_same_everywhere(case: str) -> None:
    """Each unit's exposed time, compute, window, bytes and peak; the bars too."""
    run, pages = shown(case)
    units = facts(case)["units"]
    page = list(cells(case, "units", "units-0").values())
    tables = content_of(run.report).units
    assert len(page) == len(units)
    for head, terminal, value, word in UNIT_COLUMNS:
        from_json = ["-" if value(u) is None else word(value(u)) for u in units]
        assert [row[head] for row in page] == from_json
        printed = [text for table in tables for text in in_terminal(table, terminal)]
        if len(tables) == 1 and printed:
            assert printed == [bare(text) for text in from_json]
    for unit in units:
        exposed = sum(unit["exposed_ns"][phase] or 0 for phase in PHASES)
        start = f"{unit_name(unit['unit'])}, per step on average:"
        bars = [one.words for one in pages if one.words.startswith(start)]
        assert len(bars) in (0, 1)
        for phase in PHASES:
            if bars and unit[f"{phase}_ns"]:
                assert f"own {phase} {ms(unit[f'{phase}_ns'])}" in bars[0]
        tips = [one.words for one in pages if one.words.endswith(" per step")]
        named = [t for t in tips if t.startswith(f"{unit_name(unit['unit'])}: ")]
        assert all(tip.endswith(f"exposed {ms(exposed)} per step") for tip in named)


PHASES = ("forward", "backward")


def straggling(case: str, rank: int) -> list[Any]:
    """The findings that say what a late rank does more of than the others."""
    return [
        row
        for row in facts(case)["findings"]
        if row["code"] == "FD401"
        and row["ranks"] == [rank]
        and row["evidence"].get("more_than_others_ns")
    ]


@pytest.mark.parametrize("case", EACH)
def test_ranks_are_the_same_everywhere(case: str) -> None:
    """Each rank's median step, exposed time, waiting, and what it makes others wait."""
    run, _ = shown(case)
    rows = facts(case)["ranks"]
    page = list(cells(case, "ranks", "ranks-0").values())
    table = content_of(run.report).ranks
    assert len(page) == len(rows)
    for head, terminal, name in (
        ("median step", "step ms", "step_ns"),
        ("exposed per step", "exposed ms", "exposed_ns_per_step"),
        ("waits per step", "waits ms", "wait_ns_per_step"),
    ):
        from_json = [time_cell(row[name], "not measured") for row in rows]
        assert [row[head] for row in page] == from_json
        assert in_terminal(table, terminal) in ([], [bare(t) for t in from_json])
    caused = {f"rank {row['rank']}": row["wait_caused_ns_per_step"] for row in rows}
    for (rank, _number), row in cells(case, "ranks", "ranks-0-late").items():
        assert row[MAKES_WAIT] == ms(caused[rank])
        for finding in straggling(case, int(rank.removeprefix("rank "))):
            more = finding["evidence"]["more_than_others_ns"]
            part = max(more, key=lambda name: more[name])
            assert row[REASON].endswith(f": {ms(more[part])} per step more")


@pytest.mark.parametrize("case", EACH)
def test_collectives_are_the_same_everywhere(case: str) -> None:
    """The median of each group, kind and size, and what of it was on the wire; what
    is exposed outside FSDP2.
    """
    run, _ = shown(case)
    report, content = facts(case), content_of(run.report)
    page = list(cells(case, "collectives", "collectives-0").values())
    rows = report["collectives"]
    for head, terminal, name in (
        ("median time", "median ms", "median_ns"),
        ("median on the wire", "wire ms", "median_wire_ns"),
    ):
        from_json = [time_cell(row[name], "not measured") for row in rows]
        assert [row[head] for row in page] in ([], from_json)
        printed = in_terminal(content.collectives, terminal)
        assert printed in ([], [bare(text) for text in from_json])
    others = list(cells(case, "collectives", "collectives-0-others").values())
    for head, terminal, name in (
        ("time per step", "ms", "ns_per_step"),
        ("exposed per step", "exp ms", "exposed_ns_per_step"),
    ):
        calls = report["other_collectives"]
        from_json = [time_cell(row[name], "not measured") for row in calls]
        assert [row[head] for row in others] in ([], from_json)
        printed = in_terminal(content.others, terminal)[: len(from_json)]
        assert printed in ([], [bare(text) for text in from_json])


@pytest.mark.parametrize("case", EACH)
def test_the_budget_is_the_same_everywhere(case: str) -> None:
    """Each part of the mean step; its exposed parts are the exposed times by kind and,
    to a rounding, by cause.
    """
    run, pages = shown(case)
    report = facts(case)
    parts = {part.words: part.ns for part in content_of(run.report).budget}
    legend = {
        one.words.split(ms(ns))[0]: ns
        for one in pages
        if one.page == "overview" and one.heading.startswith("Step budget")
        for words, ns in parts.items()
        if one.words.startswith(f"{words}{ms(ns)}")
    }
    assert set(legend.items()) <= set(parts.items())
    total = sum(parts.values()) or 1
    assert {w for w, ns in parts.items() if ns >= total / 1000} <= set(legend)
    exposed = report["exposed_ns_per_step"]
    said_causes = [
        one.words
        for one in pages
        if one.page == "overview" and one.heading.startswith("Exposed time by cause")
    ]
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        known = exposed[kind]
        if known:
            assert ms(report["budget_ns_per_step"][f"exposed_{kind}"]) == ms(known)
        if known:
            assert ms(known) in said_causes
    causes: Mapping[str, int | None] = exposed["by_cause"]
    for cause, words_of_cause in CAUSE_WORDS.items():
        ns = causes[cause]
        if ns and causes["wire_or_straggler"] is None:
            line = next(s for s in said_causes if s.startswith(f"{words_of_cause}: "))
            assert line.endswith(ms(ns))


@pytest.mark.parametrize("case", EACH)
def test_what_findings_cost_is_the_same_everywhere(case: str) -> None:
    """On Overview, beside the timeline, in the terminal and in JSON."""
    _, pages = shown(case)
    findings = facts(case)["findings"]
    overview = [
        one.words for one in pages if one.page == "overview" and "per step" in one.words
    ]
    cards = [one.words for one in pages if one.page == "timeline"]
    terminal = re.sub(r"\s+", " ", words(case)["terminal"])
    for row in findings:
        if row["cost_ns_per_step"] is None:
            continue
        name = f"{row['code']} {row['name']}"
        cost = f"{ms(row['cost_ns_per_step'])} per step"
        assert any(name in one and cost in one for one in overview), name
        assert any(one.startswith(name) and cost in one for one in cards), name
        assert f"{name} {cost}" in terminal


@pytest.mark.parametrize("case", EACH)
def test_what_if_says_what_advice_says(case: str) -> None:
    """The same change gives the same, and costs the same memory, on What-if as in the
    finding that proposes it; the step that it starts from says which it is.
    """
    run, _ = shown(case)
    advice = [
        one
        for finding in facts(case)["findings"]
        for one in finding["advice"]
        if one["change"] and one["predicted_gain_ns"] is not None
    ]
    if not advice:
        return
    base = replay_run(run.run, run.measures)
    steps = base.calibration.steps
    meaning = f"mean of {steps} middle step{'s' * (steps > 1)} of rank "
    assert meaning in said("whatif", replay_words(base))[0].words
    for one in advice:
        found = predict(base, plan_of(one["change"]))
        parts = said("whatif", *prediction_words(base, found, run.report))
        change = {p.row: p.words for p in parts if p.column == "change"}
        row = next(name for name in change if name.startswith("step, "))
        assert meaning in row
        assert change[row].startswith(f"-{ms(one['predicted_gain_ns'])}")
        cost = one["memory_cost_bytes"]
        assert change["memory per rank"] == memory_words(cost)


def memory_words(cost: int | None) -> str:
    """A change of memory, as What-if has it."""
    if cost is None:
        return "not known"
    return f"{'+' if cost > 0 else '-'}{size(abs(cost))}" if cost else "no change"


TIME = re.compile(r"\d ms")
SAYS_WHICH = re.compile(
    r"\b([Mm]ean|average|[Mm]edian|p95|p99|longest|[Ss]tep \d|[Cc]lock|last event)"
)
EXPLAINED = re.compile(r"on average|[Mm]ean over judged|mean step")


@pytest.mark.parametrize("case", EACH)
def test_each_time_says_what_it_is(case: str) -> None:
    """A mean, a median or one step: by its words, its heading or its column; "per
    step" only on a page that says that this is a mean.
    """
    _, pages = shown(case)
    explained = {one.page for one in pages if EXPLAINED.search(one.words)}
    unsaid = []
    for one in pages:
        around = f"{one.words} {one.heading} {one.column}"
        if not TIME.search(one.words) or SAYS_WHICH.search(around):
            continue
        if "per step" not in around.lower() or one.page not in explained:
            unsaid.append((one.page, one.heading, one.column, one.words))
    assert unsaid == []
