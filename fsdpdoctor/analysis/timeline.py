"""Timeline: one step on one rank, with its collectives and what waited for them.

A recorded run measured its stalls; a trace has kernels, and its stalls are derived
here from the gaps between them. Past this point both look the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.intervals import (
    Int64s,
    Intervals,
    clip,
    complement,
    intersect,
    pieces,
    single,
    subtract,
    union,
)
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    COLLECTIVE_KINDS,
    DEVICE_WORK,
    NO_TIME,
    UNKNOWN,
    WAIT_OF,
    Evidence,
    Flag,
    Kind,
    Lane,
    Spans,
    StepRecord,
    TimedTable,
    column,
    is_any,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collectives(TimedTable):
    """One row per collective of FSDP2. Times are ns on the rank's clock."""

    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    kind: npt.NDArray[np.int8] = column("int8", 0)  # one of COLLECTIVE_KINDS
    phase: npt.NDArray[np.int8] = column("int8", 0)
    flags: npt.NDArray[np.int16] = column("int16", 0)
    micro_batch: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    by_unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    op: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    group: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    seq: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    issued_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)

    @property
    def busy(self) -> Intervals:
        """When at least one of these collectives was running."""
        return union(self.start_ns, self.end_ns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stalls(TimedTable):
    """One row per stretch in which the compute lane stood still for a collective.

    Rows do not overlap: where two collectives were waited for at once, the time is
    the first one's. So their sum is the exposed time.
    """

    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    collective: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # row of Collectives
    kind: npt.NDArray[np.int8] = column("int8", 0)  # the collective's
    phase: npt.NDArray[np.int8] = column("int8", 0)
    flags: npt.NDArray[np.int16] = column("int16", 0)
    micro_batch: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # the collective's


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """One step on one rank."""

    data: RankData
    record: StepRecord
    collectives: Collectives
    stalls: Stalls
    compute: Intervals  # when the compute lane did work

    @property
    def spans(self) -> Spans:
        return self.record.spans

    @property
    def step(self) -> int:
        return self.record.step

    @property
    def start_ns(self) -> int:
        return self.record.start_ns

    @property
    def end_ns(self) -> int:
        return self.record.end_ns

    @property
    def duration_ns(self) -> int:
        return self.record.duration_ns

    def of(self, *kinds: Kind) -> Spans:
        """The spans of some kinds."""
        return of_kinds(self.spans, *kinds)

    def busy(self, *kinds: Kind) -> Intervals:
        """When at least one span of some kinds was open, within the step."""
        covered = covered_by(self.spans, is_any(self.spans.kind, *kinds))
        return clip(covered, self.start_ns, self.end_ns)


def of_kinds(spans: Spans, *kinds: Kind) -> Spans:
    """The spans of some kinds."""
    return spans.rows(is_any(spans.kind, *kinds))


def covered_by(spans: Spans, which: npt.NDArray[np.bool_]) -> Intervals:
    """When at least one of some spans was open. Reads two columns of their rows, for a
    step may have a million kernels.
    """
    return union(spans.start_ns[which], spans.end_ns[which])


def timelines(data: RankData) -> Iterator[Timeline]:
    """Every step of a rank, whole or not, in order."""
    for record in data.steps:
        yield timeline_of(data, record)


def timeline_of(data: RankData, record: StepRecord) -> Timeline:
    """One step of a rank."""
    spans = record.spans
    collectives = collectives_of(spans, record.step)
    window = single(record.start_ns, record.end_ns)
    if Evidence.STALLS in data.evidence:
        stalls = _measured_stalls(spans, collectives, window)
        compute = _host_compute(spans, stalls, window)
    else:
        compute = intersect(compute_lane(spans), window)
        stalls = _derived_stalls(spans, collectives, compute, window)
    return Timeline(
        data=data,
        record=record,
        collectives=collectives,
        stalls=stalls,
        compute=compute,
    )


def compute_lane(spans: Spans) -> Intervals:
    """When the compute lane of a trace was busy.

    A copy-in on its own stream is compute to the overlap share, and yet no reason
    why the compute lane would not stand still.
    """
    work = is_any(spans.kind, *DEVICE_WORK) & (spans.lane == Lane.COMPUTE)
    return covered_by(spans, work)


def collectives_of(spans: Spans, step: int) -> Collectives:
    """FSDP2's collectives among some spans, by start."""
    rows = of_kinds(spans, *COLLECTIVE_KINDS)
    rows = rows.rows(np.argsort(rows.start_ns, kind="stable"))
    return Collectives.of_rows(rows, step=step)


def _stall_rows(
    collectives: Collectives, row: Int64s, start_ns: Int64s, end_ns: Int64s
) -> Stalls:
    """Stalls for given rows of `collectives`, sorted, made disjoint, none empty."""
    order = np.argsort(start_ns, kind="stable")
    row, start_ns, end_ns = row[order], start_ns[order], end_ns[order]
    if len(row):
        reach = np.maximum.accumulate(end_ns)
        start_ns = np.maximum(start_ns, np.concatenate((start_ns[:1], reach[:-1])))
    keep = end_ns > start_ns
    row, start_ns, end_ns = row[keep], start_ns[keep], end_ns[keep]
    return Stalls.of_rows(
        collectives.rows(row), collective=row, start_ns=start_ns, end_ns=end_ns
    )


def _measured_stalls(
    spans: Spans, collectives: Collectives, window: Intervals
) -> Stalls:
    """The recorder's wait spans, joined to their collectives by op and kind."""
    rows: list[Int64s] = []
    starts: list[Int64s] = []
    ends: list[Int64s] = []
    for kind, wait in WAIT_OF.items():
        waits = of_kinds(spans, wait)
        row = _rows_of_ops(collectives, kind, waits.op)
        # A wait whose collective lies in the step before still stalled this one,
        # but there is nothing here to split it by: the recorder keeps both in the
        # step of the wait, so this is only a step cut off by the end of the run.
        known = row != UNKNOWN
        rows.append(row[known].astype(np.int64))
        starts.append(waits.start_ns[known])
        ends.append(waits.end_ns[known])
    first, last = (window[0, 0], window[0, 1]) if len(window) else (0, 0)
    return _stall_rows(
        collectives,
        np.concatenate(rows),
        np.clip(np.concatenate(starts), first, last),
        np.clip(np.concatenate(ends), first, last),
    )


def _rows_of_ops(collectives: Collectives, kind: Kind, ops: Int64s) -> Int64s:
    """[len(ops)] the row of each op's collective of a kind, UNKNOWN where it has none.

    Of several the last one counts.
    """
    rows = np.flatnonzero(collectives.kind == kind)
    rows = rows[np.argsort(collectives.op[rows], kind="stable")]
    own = collectives.op[rows]
    at = np.searchsorted(own, ops, side="right") - 1
    if not len(rows):
        return np.full(len(ops), UNKNOWN)
    found = (at >= 0) & (own[at] == ops)
    return np.where(found, rows[at], UNKNOWN).astype(np.int64)


def _host_compute(spans: Spans, stalls: Stalls, window: Intervals) -> Intervals:
    """The compute lane of a recorded run: the model's and optimizer's own time."""
    work = of_kinds(
        spans,
        Kind.MICRO_BATCH,
        Kind.FORWARD,
        Kind.BACKWARD,
        Kind.OPTIMIZER,
        Kind.CLIP,
        Kind.COPY_OUT,
        Kind.REDUCE_COPY_IN,
    )
    busy = intersect(union(work.start_ns, work.end_ns), window)
    others = covered_by(spans, spans.kind == Kind.COLLECTIVE_WAIT)
    return subtract(subtract(busy, union(stalls.start_ns, stalls.end_ns)), others)


def _derived_stalls(
    spans: Spans, collectives: Collectives, compute: Intervals, window: Intervals
) -> Stalls:
    """Gaps of the compute lane that a collective explains.

    An all-gather explains the gap right before its copy-out, whole: whatever
    delayed it, that kernel could not start. Any other collective explains the part
    of a gap in which it ran. A gap is the first one's that claims it.
    """
    if len(window) == 0 or len(collectives) == 0:
        return Stalls.build(0)
    gaps = complement(compute, int(window[0, 0]), int(window[0, 1]))
    copy_outs = of_kinds(spans, Kind.COPY_OUT)
    row, use = _first_uses(collectives, copy_outs)
    # The gap that ends where the copy-out begins, if it overlaps the gather or lies
    # before it altogether (then the host was late).
    at = np.searchsorted(gaps[:, 1], use)
    at[at == len(gaps)] = 0
    before = gaps[at] if len(gaps) else np.full((len(at), 2), NO_TIME)
    waited = (before[:, 1] == use) & (collectives.end_ns[row] > before[:, 0])
    claimed = _stall_rows(collectives, row[waited], before[waited, 0], use[waited])
    free = subtract(gaps, union(claimed.start_ns, claimed.end_ns))
    during = pieces(collectives.start_ns, collectives.end_ns, free)
    return _stall_rows(
        collectives,
        np.concatenate((claimed.collective, during.span.astype(np.int64))),
        np.concatenate((claimed.start_ns, during.start_ns)),
        np.concatenate((claimed.end_ns, during.end_ns)),
    )


def _first_uses(collectives: Collectives, copy_outs: Spans) -> tuple[Int64s, Int64s]:
    """All-gathers that are copied out: their rows, and when that first begins."""
    order = np.lexsort((copy_outs.start_ns, copy_outs.op))
    order = order[copy_outs.op[order] != UNKNOWN]
    ops = copy_outs.op[order]
    rows = np.flatnonzero(collectives.kind == Kind.ALL_GATHER).astype(np.int64)
    at = np.searchsorted(ops, collectives.op[rows])
    at[at == len(ops)] = 0
    if not len(ops):
        return rows[:0], ops
    used = ops[at] == collectives.op[rows]
    return rows[used], copy_outs.start_ns[order][at[used]]


def first_of_step(collectives: Collectives) -> npt.NDArray[np.bool_]:
    """Which all-gathers are the first of their step, with nothing to hide under."""
    gathers = collectives.kind == Kind.ALL_GATHER
    first = np.zeros(len(collectives), dtype=bool)
    flagged: npt.NDArray[np.bool_] = gathers & (collectives.flags & Flag.FIRST != 0)
    if flagged.any() or not gathers.any():
        return flagged
    first[int(np.flatnonzero(gathers)[0])] = True
    return first
