"""Runs of two ranks that reports are made of."""

from __future__ import annotations

from typing import Any

from fsdpdoctor.finding import (
    Advice,
    Confidence,
    Finding,
    Location,
    NotJudged,
    Severity,
)
from fsdpdoctor.quantities import MS
from fsdpdoctor.report import Report
from fsdpdoctor.report.diagnosis import report_from
from fsdpdoctor.schema import (
    Evidence,
)
from fsdpdoctor.testing import draw, measured

EARLY = """
    micro_batch         00000000000000000
    all_gather          .000001..........
    wait                .00000...........
    forward             ......001........
    unsharded           ......00000000...
    backward_all_gather .........1.......
    backward_wait       .........1.......
    backward            ..........1000...
    reduce_scatter      .............00..
    rs_wait             ...............0.
"""


LATE = EARLY.replace(
    "all_gather          .00000", "all_gather          ...000"
).replace("wait                .00000", "wait                ...000")


FINDING = Finding(
    code="FD107",
    name="duplicate-all-gather",
    severity=Severity.CRITICAL,
    confidence=Confidence.MEDIUM,
    summary="layers.1 is gathered twice",
    units=("layers.1",),
    phase="backward",
    ranks=(0, 1),
    cost_ns_per_step=3 * MS,
    cost_bytes=1 << 20,
    evidence={"counted": [2, 1.5, {"seen": None}], "exact": True},
    advice=(Advice(text="do not", code="x = 1", memory_cost_bytes=0),),
    places=(Location(rank=0, step=3, start_ns=1, end_ns=2, unit="layers.1"),),
)


NOT_JUDGED = NotJudged(
    code="FD302",
    name="allocator-pressure",
    needs=(Evidence.ALLOCATOR,),
    reason="no allocator statistics",
)


def two_ranks(**changes: Any) -> Report:
    """Rank 1 arrives 2 ms late to layers.0's first all-gather; nothing is judged."""
    ranks = (draw(EARLY, **changes), draw(LATE, rank=1, **changes))
    return report_from(measured(*ranks), [FINDING], [NOT_JUDGED])
