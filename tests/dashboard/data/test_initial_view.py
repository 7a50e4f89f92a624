"""What a timeline shows first."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.quantities import MS
from fsdpdoctor_dashboard.data.initial_view import first_view
from fsdpdoctor_dashboard.data.series import SERIES, Row
from fsdpdoctor_dashboard.data.store import Series, Store

STEP = next(at for at, spec in enumerate(SERIES) if spec.row == Row.STEP)


def steps_of(*lengths_ms: int) -> Store:
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
        exposed_share={},
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
