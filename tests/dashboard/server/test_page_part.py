"""What of a run goes into one file."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.data.series import SERIES, Row
from fsdpdoctor_dashboard.data.store import Store
from fsdpdoctor_dashboard.server.page_part import (
    EXTREMES,
    LEAST_STEPS,
    fewer_ranks,
    part_of,
    shortened,
)
from tests.dashboard.synthetic import Shape, write_run

RANKS = 40


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Of RANKS ranks, and more steps than LEAST_STEPS."""
    folder = tmp_path_factory.mktemp("runs") / "many"
    write_run(folder, Shape(ranks=RANKS, steps=6, layers=3))
    return Library([folder], open_run).wait("many").store


def marks(store: Store) -> int:
    """All of its ranks."""
    return sum(len(s.start) for rank in store.ranks for s in store.series(rank))


def test_a_long_run_is_cut_after_whole_steps(runs: dict[str, Path]) -> None:
    """As many as have room, and at least one; a run that has room for all is itself."""
    store = Library([runs["before"]], open_run).wait("before").store
    ruler = next(
        s for s in store.series(store.ranks[0]) if SERIES[s.series].row == Row.STEP
    )
    ends = (ruler.start + ruler.length).tolist()
    count = sum(len(s.start) for rank in store.ranks for s in store.series(rank))
    half = shortened(store, count // 2)

    assert shortened(store, count) is store
    assert half.end == ends[2]
    assert shortened(store, 1).end == ends[0]
    whole = store.area(0, half.end, store.ranks)
    assert half.area(0, half.end, half.ranks) == [a for a in whole if a.busy_ns]


def test_of_many_ranks_those_stay_that_are_wanted_or_stand_out(many: Store) -> None:
    """And others, evenly; with room for several of their steps."""
    room = 16
    of_step = marks(shortened(many, 1)) // RANKS
    waits = {rank: many.facts[rank].exposed_share for rank in many.ranks}
    order = sorted(many.ranks, key=lambda rank: (waits[rank] or 0.0, rank))
    wanted = [order[RANKS // 2], order[RANKS // 2 + 1]]
    limit = LEAST_STEPS * room * (of_step + 1)
    few = fewer_ranks(many, limit, wanted)
    part = part_of(many, limit, wanted)

    assert None not in waits.values()
    assert len(few.ranks) == room
    assert {*wanted, *order[:EXTREMES], *order[-EXTREMES:]} < {*few.ranks}
    assert few.ranks == part.ranks == tuple(sorted(few.ranks))
    others = [r for r in few.ranks if r not in wanted]
    assert max(b - a for a, b in pairwise(others)) <= RANKS // 4
    assert marks(part) <= limit
    assert few.names.keys() == few.facts.keys() == few.spans.keys() == {*few.ranks}
    steps = [s for s in part.series(part.ranks[0]) if SERIES[s.series].row == Row.STEP]
    assert [len(s.start) for s in steps] == [LEAST_STEPS]


def test_a_run_that_has_room_is_itself(many: Store) -> None:
    """With all its ranks, and where only steps are too many, with all of them, too."""
    whole = marks(many)

    assert part_of(many, whole, []) is many
    assert fewer_ranks(many, whole - 1, []) is many
    assert part_of(many, whole - 1, []).ranks == many.ranks
    assert fewer_ranks(many, 1, [7, 3]).ranks == (7,)
