"""All that a finding is about, from the places that it names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.schema import Kind, Phase, Spans
from fsdpdoctor_dashboard.data.finding_marks import finding_marks, marks_like
from fsdpdoctor_dashboard.data.rank_tracks import Stretch
from fsdpdoctor_dashboard.data.slices import Exposed, RankNames, Track
from fsdpdoctor_dashboard.data.store import Store, build_store

GATHER, REDUCE = int(Kind.ALL_GATHER), int(Kind.REDUCE_SCATTER)
FORWARD, BACKWARD = int(Phase.FORWARD), int(Phase.BACKWARD)


@pytest.fixture(scope="module")
def store() -> Store:
    """Two ranks alike: stalls of two units in both passes, and pauses of two kinds."""
    exposed = Exposed.build(
        5,
        start_ns=[1000, 1100, 1200, 1300, 1400],
        end_ns=[1010, 1120, 1230, 1340, 1450],
        kind=[GATHER, GATHER, GATHER, GATHER, REDUCE],
        phase=[FORWARD, FORWARD, BACKWARD, FORWARD, BACKWARD],
        unit=[0, 1, 0, 0, 0],
    )
    spans = Spans.build(
        3,
        start_ns=[1000, 1500, 1600],
        end_ns=[1001, 1560, 1680],
        kind=[int(Kind.GC), int(Kind.GC), int(Kind.CHECKPOINT_SAVE)],
    )
    names = RankNames(units=("layers.0", "layers.1"))
    return build_store(
        (Track(rank=r, spans=spans, exposed=exposed, names=names) for r in (0, 1)),
        "test",
    )


def test_stalls_of_its_kind_pass_and_units_are_lit_on_its_ranks(store: Store) -> None:
    """Not those of the other pass, nor of another unit."""
    place = Stretch(0, 300, 340)

    assert marks_like(store, [place], units=["layers.0"], ranks=[0, 1]) == [
        (0, 0, 10),
        (0, 300, 340),
        (1, 0, 10),
        (1, 300, 340),
    ]
    assert marks_like(store, [place], units=["layers.0"], ranks=[1]) == [
        (0, 300, 340),
        (1, 0, 10),
        (1, 300, 340),
    ]


def test_events_of_the_host_are_told_by_their_kind(store: Store) -> None:
    """A collection of garbage is no checkpoint, though both have one colour."""
    assert marks_like(store, [Stretch(1, 500, 560)]) == [
        (0, 0, 1),
        (0, 500, 560),
        (1, 0, 1),
        (1, 500, 560),
    ]


def test_a_place_where_nothing_stands_is_lit_alone(store: Store) -> None:
    """Such as the moment at which a rank ended; a finding without places has none."""
    assert marks_like(store, [Stretch(1, 77, 77)], ranks=[1]) == [(1, 77, 77)]
    assert marks_like(store, []) == []


def test_a_finding_that_names_no_place_lights_nothing(store: Store) -> None:
    """Its units and ranks alone say not what to look for."""
    row: Any = SimpleNamespace(places=(), units=("layers.0",), ranks=(0,))
    nothing: Any = None

    assert finding_marks(nothing, store, row) == []
