"""Findings as cards: each cost once, and what has nothing to change in one line."""

from __future__ import annotations

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.finding import Advice
from fsdpdoctor.quantities import MS
from fsdpdoctor.renderers.report_view import content_of
from fsdpdoctor.report.value import FindingRow, PartOf
from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun
from fsdpdoctor_dashboard.pages.components import Context
from fsdpdoctor_dashboard.pages.findings import cards
from tests.dashboard.said import words_of
from tests.rig.changed import replace

NOTHING = (Advice(text="Nothing to change: gloo cannot."),)


@pytest.fixture
def opened(library: Library) -> OpenRun:
    """A run to hang findings on."""
    return library.wait("before")


def row(code: str, cost_ms: int, **changes: object) -> FindingRow:
    """A finding on rank 0, without a place of its own."""
    made = FindingRow(
        code=code,
        name=code.lower(),
        severity="warning",
        confidence="high",
        units=(),
        phase=None,
        ranks=(0,),
        cost_ns_per_step=cost_ms * MS,
        cost_bytes=None,
        summary=f"of {code}",
        evidence={},
        advice=(Advice(text="act"),),
        places=(),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def shown(opened: OpenRun, *rows: FindingRow) -> list[Component]:
    """The page's parts for a run with these findings."""
    run = replace(opened, report=replace(opened.report, findings=rows))
    context = Context(base="/", theme="light", runs=(run,))
    return list(cards(context, run, content_of(run.report)))


def test_a_cost_within_another_stands_under_it(opened: OpenRun) -> None:
    """One card, whose inner one says what of the cost is its."""
    part = row("FD301", 3, part_of=PartOf(code="FD101", index=0))
    found = shown(opened, row("FD101", 5), part)

    assert len(found) == 1
    assert "of FD301" in words_of(found[0])
    assert "of it 3.00 ms per step" in str(found[0])


def test_what_costs_more_than_what_holds_it_is_only_partly_of_it(
    opened: OpenRun,
) -> None:
    """Information within a warning may say more of the step than that does."""
    part = row("FD401", 9, part_of=PartOf(code="FD101", index=0))
    found = shown(opened, row("FD101", 5), part)
    run = replace(opened.report, findings=(row("FD101", 5), part))

    assert "partly of it, 9.00 ms per step" in str(found[0])
    assert content_of(run).findings[1].cost == (
        "9.00 ms per step, partly counted in FD101 (finding 1)"
    )


def test_nothing_to_change_is_one_line(opened: OpenRun) -> None:
    """Advice that is none, and information that gains nothing, come last and closed."""
    idle = row("FD102", 9, advice=NOTHING)
    known = row("FD404", 2, severity="info")
    found = shown(opened, idle, known, row("FD101", 5))

    assert [type(part) for part in found] == [html.Section, html.Details]
    assert "Nothing to change about FD102 fd102, FD404 fd404" in str(found[1])


def test_what_holds_something_to_do_is_not_folded(opened: OpenRun) -> None:
    """A late rank under a reduce-scatter that cannot be overlapped stays in sight."""
    late = row("FD401", 4, part_of=PartOf(code="FD102", index=0))
    found = shown(opened, row("FD102", 9, advice=NOTHING), late)

    assert [type(part) for part in found] == [html.Section]


def test_every_finding_leads_to_the_timeline(opened: OpenRun) -> None:
    """Without a place of its own it leads to a step of the middle length."""
    found = str(shown(opened, row("FD103", 5))[0])

    assert "Show a typical step" in found
    assert "/timeline?run=before&t0=" in found
