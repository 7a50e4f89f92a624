"""Findings beside the timeline: what a card holds before anybody opens it."""

from __future__ import annotations

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.finding import Advice, Location
from fsdpdoctor.renderers.report_view import content_of
from fsdpdoctor.report.value import FindingRow
from fsdpdoctor_dashboard.data.rank_tracks import middle_step
from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun
from fsdpdoctor_dashboard.pages.components import Context
from fsdpdoctor_dashboard.pages.timeline_cards import timeline_cards
from tests.dashboard.pages.test_findings import row
from tests.dashboard.said import words_of
from tests.rig.changed import replace


@pytest.fixture
def opened(library: Library) -> OpenRun:
    """A run to hang findings on."""
    return library.wait("before")


def made(opened: OpenRun, *rows: FindingRow) -> list[Component]:
    """The cards of a run with these findings."""
    run = replace(opened, report=replace(opened.report, findings=rows))
    context = Context(base="/", theme="light", runs=(run,))
    return list(timeline_cards(context, run, content_of(run.report)))


def places_of(card: Component) -> list[list[int]]:
    """What finding_cards.js reads of it."""
    text = getattr(card, "data-places")
    return [[int(part) for part in place.split(",")] for place in text.split(";")]


def test_a_card_holds_its_words_its_code_and_its_places(opened: OpenRun) -> None:
    """As the other pages say them; places on the clock that all ranks share."""
    steps = opened.measures.ranks[0].steps
    start = int(steps.start_ns[3])
    places = tuple(
        Location(rank=0, step=int(steps.step[3]), start_ns=start + at, end_ns=start + 9)
        for at in (5, 2)
    )
    advice = (Advice(text="act", code="print()"),)
    (card,) = made(opened, row("FD101", 3, places=places, advice=advice))

    origin = start - opened.store.origin_ns
    assert places_of(card) == [[0, origin + 5, origin + 9], [0, origin + 2, origin + 9]]
    assert isinstance(card, html.Details)
    said = words_of(card)
    for words in ("of FD101", "act", "print()", "Copy", "place 1 of 2"):
        assert words in said
    assert getattr(card, "data-finding") == "0"


def test_a_finding_without_places_shows_a_step_like_most(opened: OpenRun) -> None:
    """On its rank, and says so."""
    (card,) = made(opened, row("FD506", 0, ranks=(1,)))

    rank = opened.measures.of(1)
    at = rank.steps.step.tolist().index(middle_step(rank))
    ((number, begin, end),) = places_of(card)
    assert (number, end - begin) == (1, int(rank.steps.duration_ns[at]))
    assert "a typical step: it is about all of them" in words_of(card)
