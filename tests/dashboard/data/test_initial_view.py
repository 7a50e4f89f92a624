"""What a timeline shows first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import Spans
from fsdpdoctor_dashboard.data.initial_view import first_view
from fsdpdoctor_dashboard.data.series import SERIES, Row
from fsdpdoctor_dashboard.data.slices import RankFacts, StepRows, Track
from fsdpdoctor_dashboard.data.store import Series, Store, build_store

STEP = next(at for at, spec in enumerate(SERIES) if spec.row == Row.STEP)


def steps_of(*lengths_ms: int, typical: int | None = None) -> Store:
    """A store of one rank whose steps follow each other."""
    length = np.array(lengths_ms, dtype=np.int64) * MS
    start = np.cumsum(length) - length
    order = np.arange(len(length), dtype=np.int32)
    series = Series(
        rank=0,
        series=STEP,
        start=start,
        length=length,
        total=np.concatenate(([0], np.cumsum(length))),
        span=order,
        unit=np.full(len(length), -1, dtype=np.int32),
        starts=np.arange(1, len(length) + 1),
    )
    tables = {"spans": {0: None}, "exposed": {0: None}, "memory": {0: None}}
    return Store(
        fingerprint="x",
        origin_ns=0,
        series=[series],
        tables=tables,  # type: ignore[arg-type]  # no span is asked for
        names={},
        facts={0: RankFacts(typical_step=typical)},
    )


@pytest.mark.parametrize(
    ("lengths_ms", "expected"),
    [
        ((10, 10, 10), None),  # no start
        ((900, 50, 50), (899 * MS, 1001 * MS)),
        ((900, 400, 50, 50, 50, 50), (1298 * MS, 1502 * MS)),  # two slow ones
        ((40, 10, 900, 10, 10), None),  # a slow step later is what hurts
        ((100, *[10] * 60), None),  # a start that leaves room
        ((900,), None),
        ((), None),
    ],
)
def test_a_slow_start_is_left_out(
    lengths_ms: tuple[int, ...], expected: tuple[int, int] | None
) -> None:
    """Leading slow steps that would fill the picture are left of what is shown."""
    found = first_view(steps_of(*lengths_ms))

    shown = None if found is None else (found["t0"], found["t1"])
    assert shown == expected


def test_a_step_like_most_comes_first() -> None:
    """The judged one of the middle length with a fiftieth of it on both sides, also
    where a slow start would be left out.
    """
    found = first_view(steps_of(900, 50, 60, 50, typical=2))

    assert found == {"t0": 950 * MS - 1_200_000, "t1": 1010 * MS + 1_200_000, "step": 2}


def test_the_only_step_is_the_whole_run() -> None:
    """What lies around it in the record is shown, too."""
    assert first_view(steps_of(50, typical=0)) is None


def test_a_step_is_shown_on_all_ranks() -> None:
    """From the rank that begins it first to the one that ends it last."""
    store = store_of(
        StepRows.build(2, step=[4, 5], start_ns=[0, 100], end_ns=[100, 200]),
        StepRows.build(2, step=[4, 5], start_ns=[10, 120], end_ns=[90, 320]),
        typical_step=5,
    )

    assert first_view(store) == {"t0": 96, "t1": 324, "step": 5}


def store_of(*steps: StepRows, **facts: Any) -> Store:
    """Ranks that have nothing but steps."""
    return build_store(
        (
            Track(rank=rank, spans=Spans.build(0), steps=rows, facts=RankFacts(**facts))
            for rank, rows in enumerate(steps)
        ),
        "test",
    )
