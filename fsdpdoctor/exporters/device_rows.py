"""A step's device work, with its launches: measured, or made of a record's passes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fsdpdoctor.analysis.timeline import of_kinds, timeline_of
from fsdpdoctor.exporters.hooks import hooks_of
from fsdpdoctor.intervals import Intervals, subtract, union
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    Evidence,
    Flag,
    Hook,
    Kind,
    Lane,
    Phase,
    Spans,
    StepRecord,
    distinct,
    one_of,
)

STREAMS = {
    Lane.COMPUTE: 7,
    Lane.COPY_IN: 20,
    Lane.ALL_GATHER: 22,
    Lane.REDUCE_SCATTER: 24,
    Lane.ALL_REDUCE: 26,
    Lane.OTHER_COMM: 28,
    Lane.COPY: 7,
}
"""Streams for records that do not say theirs."""

NAMES = {
    Kind.COPY_IN: "fsdp_all_gather_copy_in",
    Kind.COPY_OUT: "split_with_sizes_copy_out_contiguous",
    Kind.REDUCE_COPY_IN: "chunk_cat_cuda_kernel",
    Kind.ALL_GATHER: "ncclDevKernel_AllGather_RING_LL",
    Kind.REDUCE_SCATTER: "ncclDevKernel_ReduceScatter_Sum_RING_LL",
    Kind.ALL_REDUCE: "ncclDevKernel_AllReduce_Sum_RING_LL",
    Kind.MEMCPY: "Memcpy DtoD (Device -> Device)",
    Kind.MEMSET: "Memset (Device)",
}

WORK = (
    *(Kind.KERNEL, Kind.COPY_IN, Kind.COPY_OUT, Kind.REDUCE_COPY_IN),
    *(Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.COLLECTIVE),
    *(Kind.MEMCPY, Kind.MEMSET),
)

PASSES = (Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER)


class DeviceRow(NamedTuple):
    """One kernel or copy, and when the host launched it."""

    kind: Kind
    name: str
    phase: Phase
    unit: int
    stream: int
    start_ns: int
    end_ns: int
    launched_ns: int
    op: int = UNKNOWN
    bytes: int = UNKNOWN
    group: int = UNKNOWN
    seq: int = UNKNOWN
    made: bool = False  # stands for a pass, of which the record has no kernels


def device_rows(data: RankData, record: StepRecord) -> list[DeviceRow]:
    """All device work of a step, by start."""
    rows = list(_measured(data, record))
    if Evidence.KERNELS not in data.evidence:
        rows += _made(data, record)
        rows += _gathers_without_copy(data, record)
    return sorted(rows, key=lambda row: row.start_ns)


def _measured(data: RankData, record: StepRecord) -> Iterator[DeviceRow]:
    spans = of_kinds(record.spans, *WORK)
    launched = np.where(spans.issued_ns == NO_TIME, spans.start_ns, spans.issued_ns)
    windows = _Windows(data, record)
    for i, kind in enumerate(spans.kind.tolist()):
        name = data.name(int(spans.name[i])) or NAMES.get(kind, "kernel")
        stream = int(spans.stream[i])
        at = windows.of_call(spans, i, int(launched[i]))
        lane = Lane(int(spans.lane[i]))
        if kind == Kind.COPY_IN and spans.flags[i] & Flag.ASYNC_OP:
            lane = Lane.COMPUTE  # where FSDP2 copies in for an asynchronous unshard
        yield DeviceRow(
            kind=Kind(kind),
            name=name,
            phase=Phase(int(spans.phase[i])),
            unit=int(spans.unit[i]),
            op=int(spans.op[i]),
            stream=stream if stream >= 0 else STREAMS[lane],
            start_ns=int(spans.start_ns[i]),
            end_ns=int(spans.end_ns[i]),
            launched_ns=at,
            bytes=int(spans.bytes[i]),
            group=int(spans.group[i]),
            seq=int(spans.seq[i]),
        )


def _made(data: RankData, record: StepRecord) -> Iterator[DeviceRow]:
    """One kernel per stretch in which a unit's own pass kept the compute lane busy."""
    busy = timeline_of(data, record).compute
    copies = of_kinds(record.spans, Kind.COPY_OUT, Kind.REDUCE_COPY_IN)
    busy = subtract(busy, union(copies.start_ns, copies.end_ns))
    windows = _Windows(data, record)
    passes = of_kinds(record.spans, *PASSES)
    for start, end, at in _pieces(busy, passes):
        kind, phase, unit, micro_batch = Kind.MICRO_BATCH, Phase.OTHER, UNKNOWN, UNKNOWN
        if at >= 0:
            kind, phase = Kind(int(passes.kind[at])), Phase(int(passes.phase[at]))
            unit, micro_batch = int(passes.unit[at]), int(passes.micro_batch[at])
        yield DeviceRow(
            kind=Kind.KERNEL,
            name=f"{kind.key}_kernel",
            phase=phase,
            unit=unit,
            stream=STREAMS[Lane.COMPUTE],
            start_ns=start,
            end_ns=end,
            launched_ns=windows.of_pass(kind, unit, phase, micro_batch, start),
            made=True,
        )


def _pieces(busy: Intervals, passes: Spans) -> Iterator[tuple[int, int, int]]:
    """Busy time cut where a pass begins or ends, with the innermost pass around it."""
    edges = distinct(np.concatenate((passes.start_ns, passes.end_ns)))
    for start, end in busy.tolist():
        inside = edges[(edges > start) & (edges < end)].tolist()
        bounds = [start, *inside, end]
        for left, right in itertools.pairwise(bounds):
            around = (passes.start_ns <= left) & (passes.end_ns >= right)
            at = np.flatnonzero(around)
            innermost = at[np.argmax(passes.start_ns[at])] if len(at) else UNKNOWN
            yield left, right, int(innermost)


def _gathers_without_copy(data: RankData, record: StepRecord) -> Iterator[DeviceRow]:
    """An empty copy-out where a wait ended, for records that know of no copy-out: it
    is what tells a reader how long compute stood still.
    """
    spans = record.spans
    windows = _Windows(data, record)
    copied = spans.op[spans.kind == Kind.COPY_OUT]
    waits = spans.rows((spans.kind == Kind.ALL_GATHER_WAIT) & ~one_of(spans.op, copied))
    for i, end in enumerate(waits.end_ns.tolist()):
        yield DeviceRow(
            kind=Kind.COPY_OUT,
            name=NAMES[Kind.COPY_OUT],
            phase=Phase(int(waits.phase[i])),
            unit=int(waits.unit[i]),
            op=int(waits.op[i]),
            stream=STREAMS[Lane.COMPUTE],
            start_ns=end,
            end_ns=end,
            launched_ns=windows.of_copy_out(waits, i, end),
        )


class _Windows:
    """When the host was in each unit's passes and calls."""

    def __init__(self, data: RankData, record: StepRecord) -> None:
        self._hooks = hooks_of(data, record.spans)
        self._calls = of_kinds(record.spans, Kind.UNSHARD, Kind.REDUCE)
        self._last = record.host_end_ns - 2

    def of_pass(
        self, kind: Kind, unit: int, phase: int, micro_batch: int, start_ns: int
    ) -> int:
        """A launch time within a unit's pass on the host, not after the work began.

        Where the host ran ahead of the device, that is long before it began.
        """
        at = min(start_ns, self._last)
        if kind not in (Kind.FORWARD, Kind.BACKWARD):
            return at
        enters = Hook.PRE_FORWARD if kind == Kind.FORWARD else Hook.PRE_BACKWARD
        hooks = self._hooks.within(micro_batch)
        _, ends = hooks.of(enters, unit, phase)
        leaves = hooks.leaving(kind, unit, phase)
        entered = np.flatnonzero(ends <= at)
        if not len(entered):
            return at
        left = leaves[leaves >= ends[entered[-1]]]
        return int(min(at, left[0] - 1)) if len(left) else at

    def of_call(self, spans: Spans, i: int, launched_ns: int) -> int:
        """A launch time inside the host's call that a span belongs to."""
        kind, op = int(spans.kind[i]), int(spans.op[i])
        if kind == Kind.COPY_OUT and spans.issued_ns[i] == NO_TIME:
            return self.of_copy_out(spans, i, launched_ns)
        calls = self._calls.rows(self._calls.op == op)
        if op == UNKNOWN or kind == Kind.COPY_OUT or not len(calls):
            return min(launched_ns, self._last)
        first, last = int(calls.start_ns[0]), int(calls.end_ns[0])
        # The last nanosecond may be the copy-out label's.
        return max(min(launched_ns, last - 2), first)

    def of_copy_out(self, spans: Spans, i: int, start_ns: int) -> int:
        """At the end of the unit's own hook, once the gather was issued."""
        calls = self._calls.rows(self._calls.op == int(spans.op[i]))
        if not len(calls):
            return min(start_ns, self._last)
        issued = int(calls.end_ns[0])
        phase = int(spans.phase[i])
        for name in (Hook.PRE_FORWARD, Hook.PRE_BACKWARD):
            _, ends = self._hooks.of(name, int(spans.unit[i]), phase)
            later = ends[ends >= issued]
            if len(later):
                return int(later[0]) - 1
        return issued + 1
