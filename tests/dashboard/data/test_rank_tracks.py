"""A run's ranks as the timeline takes them: one clock, and the analysis's stalls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.finding import Location
from fsdpdoctor.quantities import MS, SECOND
from fsdpdoctor.run import RankData, Run, in_memory
from fsdpdoctor.schema import NO_TIME, Flag, Kind, RunHeader, Spans
from fsdpdoctor.testing import draw
from fsdpdoctor_dashboard.data.rank_tracks import (
    Stretch,
    place_on_timeline,
    shown_places,
    stretch_of,
    stretches_of,
    tracks_of,
)
from fsdpdoctor_dashboard.data.slices import RankNames, Track
from tests.rig.changed import replace

STEP = """
    all_gather 0000......
    wait       .000......
    forward    ....000000
"""
LATE = STEP.replace("all_gather 0000", "all_gather .000")
WIDTH = 10 * MS
"""Of a step; the first one drawn is number 3."""


def ahead(data: RankData, shift: int) -> RankData:
    """The same rank, whose clock shows a later time."""

    def moved(spans: Spans) -> Spans:
        issued = spans.issued_ns
        return replace(
            spans,
            start_ns=spans.start_ns + shift,
            end_ns=spans.end_ns + shift,
            issued_ns=np.where(issued == NO_TIME, NO_TIME, issued + shift),
        )

    steps = tuple(
        replace(
            record,
            start_ns=record.start_ns + shift,
            end_ns=record.end_ns + shift,
            spans=moved(record.spans),
        )
        for record in data.steps
    )
    return replace(data, steps=steps)


@pytest.fixture(scope="module")
def run() -> Run:
    """The same steps on two machines: the second one's clock is 5 s ahead, and it comes
    to each gather a millisecond later.
    """
    ranks = [draw(p, rank=r, clock="cuda") for r, p in enumerate((STEP, LATE))]
    ranks = [replace(r, header=replace(r.header, host=f"n{r.rank}")) for r in ranks]
    header = RunHeader(run_id="a", source="recorded", world_size=2)
    return in_memory(header, [ranks[0], ahead(ranks[1], 5 * SECOND)])


@pytest.fixture(scope="module")
def measures(run: Run) -> Measures:
    """What the analysis says of it."""
    return measure(run)


@pytest.fixture(scope="module")
def tracks(run: Run, measures: Measures) -> list[Track]:
    """Both ranks'."""
    return list(tracks_of(run, measures))


def test_ranks_are_told_one_by_one(run: Run, measures: Measures) -> None:
    """How many are done, each before it is read."""
    seen: list[tuple[int, int]] = []
    for track in tracks_of(
        run, measures, lambda done, total: seen.append((done, total))
    ):
        seen.append((-1, track.rank))

    assert seen == [(0, 2), (-1, 0), (1, 2), (-1, 1)]


def test_both_ranks_are_on_one_clock(tracks: list[Track]) -> None:
    """Steps, spans and stalls of the rank that is ahead lie where the other's do."""
    first, second = tracks
    assert first.steps.start_ns.tolist() == second.steps.start_ns.tolist()
    assert second.steps.start_ns.tolist() == [at * WIDTH for at in range(3, 9)]
    assert second.steps.step.tolist() == [3, 4, 5, 6, 7, 8]
    assert first.spans.end_ns.tolist() == second.spans.end_ns.tolist()
    later = second.spans.start_ns - first.spans.start_ns
    assert later.tolist() == [1 * MS, 0, 0] * 6
    assert np.array_equal(first.exposed.start_ns, second.exposed.start_ns)


def test_a_stall_leads_to_its_collective(tracks: list[Track]) -> None:
    """3 ms of every step; its row is the gather's, told with the last arrival."""
    for track in tracks:
        assert (track.exposed.end_ns - track.exposed.start_ns).tolist() == [3 * MS] * 6
        rows = track.exposed.span
        assert set(track.spans.kind[rows].tolist()) == {Kind.ALL_GATHER}
        assert track.arrived_ns is not None
        last = [at * WIDTH + 1 * MS for at in range(3, 9)]
        assert track.arrived_ns[rows].tolist() == last
        assert track.facts.exposed_share == 0.3
        assert track.facts.typical_step == 6
        assert track.names == RankNames(units=("layers.0",), groups=("shard",))


def test_a_time_of_a_rank_is_placed(measures: Measures) -> None:
    """By the step's own shift, by its own where the step never ended; nowhere where
    there is no such rank.
    """
    own = 5 * SECOND + 4 * WIDTH + 2
    assert place_on_timeline(measures, 1, 4, own) == 4 * WIDTH + 2
    assert place_on_timeline(measures, 0, 4, own) == own
    assert place_on_timeline(measures, 1, 99, own) == 4 * WIDTH + 2
    assert place_on_timeline(measures, 2, 4, own) is None


def test_where_a_findings_place_lies(measures: Measures) -> None:
    """From the timeline's origin on, on the shared clock; nowhere without its rank."""
    store: Any = SimpleNamespace(origin_ns=WIDTH)
    own = 5 * SECOND + 4 * WIDTH
    place = Location(rank=1, step=4, start_ns=own + 2, end_ns=own + 9)

    assert stretch_of(measures, store, place) == Stretch(
        1, 3 * WIDTH + 2, 3 * WIDTH + 9
    )
    assert stretch_of(measures, store, replace(place, rank=2)) is None
    assert stretches_of(measures, store, [replace(place, rank=2), place]) == [
        Stretch(1, 3 * WIDTH + 2, 3 * WIDTH + 9)
    ]


def test_every_finding_has_something_to_look_at(measures: Measures) -> None:
    """Its own places, or a judged step of its rank."""
    place = Location(rank=0, step=4, start_ns=1, end_ns=2)
    row: Any = SimpleNamespace(places=(place,), ranks=(1,))
    other: Any = SimpleNamespace(places=(), ranks=(1,))
    (step,) = shown_places(measures, other)

    assert shown_places(measures, row) == (place,)
    assert step.rank == 1
    assert step.end_ns - step.start_ns == WIDTH


def cut_off(device: str) -> Track:
    """A rank whose last gather an exception ended after 4 ms of a 6 ms forward."""
    data = draw(STEP, rank=0, clock="cuda")
    data = replace(data, header=replace(data.header, device=device))
    last = data.steps[-1]
    call = Spans.build(
        1,
        start_ns=[last.start_ns + 5 * MS],
        end_ns=[last.start_ns + 9 * MS],
        kind=[Kind.UNSHARD],
        flags=[Flag.ABORTED],
        unit=[0],
    )
    spans = Spans.concat([last.spans, call])
    steps = (*data.steps[:-1], replace(last, spans=spans))
    header = RunHeader(run_id="a", source="recorded", world_size=1)
    made = in_memory(header, [replace(data, steps=steps)])
    return next(iter(tracks_of(made, measure(made))))


@pytest.mark.parametrize(("device", "more"), [("cpu", [4 * MS]), ("cuda", [])])
def test_waiting_for_a_rank_that_never_came_is_waiting(
    device: str, more: list[int]
) -> None:
    """A call that an exception ended is a stall for a late rank, where the host
    computes; a device may well have worked on.
    """
    exposed = cut_off(device).exposed
    new = exposed.rows(exposed.flags & Flag.ABORTED != 0)

    assert (new.end_ns - new.start_ns).tolist() == more
    assert new.straggler.tolist() == more
    assert set(new.kind.tolist()) <= {Kind.ALL_GATHER}
