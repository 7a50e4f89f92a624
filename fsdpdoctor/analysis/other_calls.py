"""The collectives of a step that FSDP2 did not issue, and what stood still for each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.timeline import Timeline
from fsdpdoctor.intervals import Int64s, Intervals, covered_ns
from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    CallSites,
    Kind,
    Lane,
    Spans,
    TimedTable,
    Within,
    column,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OtherCalls(TimedTable):
    """One row per collective that is not FSDP2's."""

    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    name: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # name: "all_reduce"
    site: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # name: "train.py:43"
    via: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # name: "full_tensor"
    within: npt.NDArray[np.int8] = column("int8", 0)  # a Within
    phase: npt.NDArray[np.int8] = column("int8", 0)
    flags: npt.NDArray[np.int16] = column("int16", 0)
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    group: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    seq: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    exposed_ns: npt.NDArray[np.int64] = column("int64", 0)  # they sum to the budget's


def other_calls(line: Timeline, exposed: Intervals) -> OtherCalls:
    """The calls of a step by start. `exposed`: the time that they were given of it."""
    spans = line.spans
    rows = spans.rows(spans.lane == Lane.OTHER_COMM)
    if not len(rows):
        return OtherCalls.build(0)
    rows = rows.rows(np.argsort(rows.start_ns, kind="stable"))
    sites = _sites(line.record.call_sites, rows.op)
    told = sites["site"] != UNKNOWN
    sites["within"] = np.where(told, sites["within"], _within(line, rows))
    waits = spans.rows(spans.kind == Kind.COLLECTIVE_WAIT)
    exposed_ns = _exposed(rows, waits, exposed)
    return OtherCalls.of_rows(rows, step=line.step, exposed_ns=exposed_ns, **sites)


def _within(line: Timeline, rows: Spans) -> npt.NDArray[np.int8]:
    """[len(rows)] what the host was in when it issued each: a trace has no sites."""
    issued = np.where(rows.issued_ns == NO_TIME, rows.start_ns, rows.issued_ns)
    found = np.full(len(rows), Within.SCRIPT, np.int8)
    for kind, within in ((Kind.OPTIMIZER, Within.OPTIMIZER), (Kind.CLIP, Within.CLIP)):
        spans = line.of(kind)
        for start, end in zip(spans.start_ns, spans.end_ns, strict=True):
            found[(issued >= start) & (issued < end)] = within
    return found


def _sites(sites: CallSites, op: Int64s) -> dict[str, npt.NDArray[np.generic]]:
    """[len(op)] the columns of who called, UNKNOWN where nothing says it."""
    order = np.argsort(sites.op, kind="stable")
    at = np.searchsorted(sites.op[order], op)
    known = at < len(order)
    rows = order[np.where(known, at, 0)] if len(order) else np.zeros(len(op), np.int64)
    if len(order):
        known &= sites.op[rows] == op
    empty = CallSites.build(1)
    return {
        name: np.where(known, getattr(sites, name)[rows], getattr(empty, name)[0])
        if len(order)
        else np.repeat(getattr(empty, name), len(op))
        for name in ("site", "via", "within")
    }


def _exposed(rows: Spans, waits: Spans, exposed: Intervals) -> Int64s:
    """[len(rows)] how much of the exposed time is each one's: the first one's that
    was waited for. Without measured waits, of those that ran.
    """
    if not len(waits):
        start, end, owner = rows.start_ns, rows.end_ns, np.arange(len(rows))
    else:
        by_op = {int(op): at for at, op in enumerate(rows.op)}
        owner = np.array([by_op.get(int(op), UNKNOWN) for op in waits.op], np.int64)
        start, end = waits.start_ns, waits.end_ns
    order = np.argsort(start, kind="stable")
    start, end, owner = start[order], end[order], owner[order]
    if len(start):
        reach = np.maximum.accumulate(end)
        start = np.maximum(start, np.concatenate((start[:1], reach[:-1])))
    keep = (end > start) & (owner != UNKNOWN)
    taken = covered_ns(start[keep], end[keep], exposed)
    # float64 holds whole nanoseconds of up to 104 days exactly.
    return np.bincount(owner[keep], taken, len(rows)).astype(np.int64)
