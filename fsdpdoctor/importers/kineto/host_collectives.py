"""Collectives of a trace without a device (gloo): from the host's own events.

The operator (`c10d::_allgather_base_`) says when it was issued and of what size, the
backend's own event (`gloo:all_gather`, on its thread) when it ended, and FSDP2's label
how long the host stood still.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.importers.fsdp2.operations import Operation
from fsdpdoctor.importers.kineto.attribution import (
    Context,
    SpansWithHostTime,
    comm_args_of,
)
from fsdpdoctor.importers.kineto.device_spans import LANE_OF
from fsdpdoctor.importers.kineto.kernels import collective_kind, operation_name
from fsdpdoctor.importers.kineto.process_groups import (
    collective_bytes,
    sequence_numbers,
)
from fsdpdoctor.importers.reader.trace_file import Cat
from fsdpdoctor.schema import UNKNOWN, WAIT_OF, Flag, Hook, Kind, Lane, Phase, Spans

OPERATOR_PREFIX = "c10d::"
BACKEND_PREFIXES = ("gloo:", "hccl:", "ccl:")

NO_COLLECTIVES = frozenset({"c10d::barrier", "c10d::monitored_barrier_"})
"""Operators that move nothing, and that not every backend reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostCollective:
    kind: Kind
    operation: Operation | None
    name: str
    row: int  # of the operator
    start_ns: int
    end_ns: int
    end_seen: bool
    wait: tuple[int, int] | None  # when the host stood still for it
    op: int
    pass_at: int


def host_collectives(context: Context) -> SpansWithHostTime:
    """Collectives, and the host's waits for FSDP2's own, by start."""
    found = _find(context)
    spans = Spans.concat([_collective_spans(context, found), *_beside(found)])
    spans = spans.rows(np.argsort(spans.start_ns, kind="stable"))
    return SpansWithHostTime(spans=spans, host_ns=spans.start_ns)


def _find(context: Context) -> list[_HostCollective]:
    trace = context.trace
    events = trace.events
    rows = context.comm_ops.rows
    names = [trace.names[name] for name in events.name[rows].tolist()]
    operators = [
        (index, row)
        for index, (row, name) in enumerate(zip(rows.tolist(), names, strict=True))
        if name.startswith(OPERATOR_PREFIX) and name not in NO_COLLECTIVES
    ]
    works = [
        row
        for row, name in zip(rows.tolist(), names, strict=True)
        if name.startswith(BACKEND_PREFIXES)
    ]
    ends = _ends(context, [row for _, row in operators], works)
    at = np.array([row for _, row in operators], dtype=np.int64)
    labels = context.tree.innermost(events.tid[at], events.start_ns[at])
    passes = context.passes.at(events.start_ns[at])
    first = 1 + max(context.operations.by_op, default=UNKNOWN)
    free = [_free_until(context, row) for _, row in operators]
    return [
        _collective(context, row, int(label), end, int(pass_at), until, first + index)
        for index, ((_, row), label, end, pass_at, until) in enumerate(
            zip(operators, labels, ends, passes, free, strict=True)
        )
    ]


def _free_until(context: Context, row: int) -> int | None:
    """When the operator's thread did something else after it; None: nothing."""
    events = context.trace.events
    ended = events.start_ns[row] + events.duration_ns[row]
    later = (events.tid == events.tid[row]) & (events.cat == Cat.CPU_OP)
    starts = events.start_ns[later & (events.start_ns >= ended)]
    return int(starts.min()) if len(starts) else None


def _ends(context: Context, operators: list[int], works: list[int]) -> list[int | None]:
    """When each operator's work ended: the backend runs them in order of issue.

    All unknown where the two do not pair: another count, or a work before its call.
    """
    events = context.trace.events
    if len(operators) != len(works):
        return [None] * len(operators)
    starts = events.start_ns[np.array(works, dtype=np.int64)]
    if (starts < events.start_ns[np.array(operators, dtype=np.int64)]).any():
        return [None] * len(operators)
    return list(events.ends(np.array(works, dtype=np.int64)).tolist())


def _collective(
    context: Context,
    row: int,
    label: int,
    end_ns: int | None,
    pass_at: int,
    free_until: int | None,
    op: int,
) -> _HostCollective:
    events = context.trace.events
    name = context.trace.names[int(events.name[row])]
    kind = collective_kind(name)
    operation = context.operation(label)
    start_ns = int(events.start_ns[row])
    returned, seen = start_ns + int(events.duration_ns[row]), end_ns is not None
    wait: tuple[int, int] | None = None
    if operation is None:
        if context.has_labels:
            kind = Kind.COLLECTIVE
            # Where the caller's thread did nothing else until it ended, it waited.
            until = [t for t in (end_ns, free_until) if t is not None]
            wait = start_ns, max(returned, min(until, default=returned))
    else:
        kind = Kind.ALL_GATHER
        if operation.span.label == Hook.POST_BACKWARD_REDUCE:
            reduces = collective_kind(name) == Kind.ALL_REDUCE
            kind = Kind.ALL_REDUCE if reduces else Kind.REDUCE_SCATTER
        wait = _wait(operation, kind, start_ns, end_ns)
        if (
            wait[0] == start_ns
        ):  # blocking: it ended for the host when its call returned
            end_ns = wait[1]
    return _HostCollective(
        kind=kind,
        operation=operation,
        name=name,
        row=row,
        start_ns=start_ns,
        end_ns=max(returned if end_ns is None else end_ns, start_ns),
        end_seen=seen,
        wait=wait,
        op=op if operation is None else operation.op,
        pass_at=pass_at,
    )


def _wait(
    operation: Operation, kind: Kind, start_ns: int, end_ns: int | None
) -> tuple[int, int]:
    """When the host stood still.

    From the call to its return, which for an all-gather is the end of its label; a
    reduction's label holds other work after it, so there the work's end is taken.
    Where an all-gather outlasts its label (`_set_unshard_async_op`), from the start
    of the copy-out's label to the work's end.
    """
    label = operation.span
    if end_ns is None:
        return start_ns, label.end_ns
    if kind != Kind.ALL_GATHER:
        return start_ns, max(start_ns, min(end_ns, label.end_ns))
    if end_ns <= label.end_ns:
        return start_ns, label.end_ns
    copy_out = operation.copy_out
    if copy_out is None:
        return label.end_ns, label.end_ns
    stood_from = copy_out.start_ns
    return stood_from, max(stood_from, min(end_ns, copy_out.end_ns))


def _collective_spans(context: Context, found: list[_HostCollective]) -> Spans:
    events, passes = context.trace.events, context.passes
    args = [comm_args_of(context.trace, one.row) for one in found]
    group = np.array([context.groups.id_of(one) for one in args], dtype=np.int64)
    start_ns = np.array([one.start_ns for one in found], dtype=np.int64)
    rows = np.array([one.row for one in found], dtype=np.int64)
    return Spans.build(
        len(found),
        kind=[one.kind for one in found],
        lane=[LANE_OF[one.kind] for one in found],
        phase=[_phase(context, one) for one in found],
        flags=[_flags(one) for one in found],
        micro_batch=[
            int(passes.micro_batch[one.pass_at]) if one.pass_at >= 0 else UNKNOWN
            for one in found
        ],
        unit=[_of(one, "unit") for one in found],
        by_unit=[_of(one, "by_unit") for one in found],
        op=[one.op for one in found],
        start_ns=start_ns,
        end_ns=[one.end_ns for one in found],
        issued_ns=start_ns,
        bytes=[
            collective_bytes(one.kind, said)
            for one, said in zip(found, args, strict=True)
        ],
        group=group,
        seq=sequence_numbers(group, events.seq[rows], start_ns),
        name=[context.names.id(operation_name(one.name)) for one in found],
    )


def _of(one: _HostCollective, what: str) -> int:
    return UNKNOWN if one.operation is None else int(getattr(one.operation, what))


def _phase(context: Context, one: _HostCollective) -> Phase:
    if one.operation is not None:
        return one.operation.phase
    if one.pass_at < 0:
        return Phase.OTHER
    return Phase(int(context.passes.phase[one.pass_at]))


def _flags(one: _HostCollective) -> Flag:
    flags = Flag.NONE if one.operation is None else one.operation.flags
    if not one.end_seen:
        flags |= Flag.END_ESTIMATED
    if one.operation is None or one.wait is None:
        return flags
    blocked = one.wait[0] == one.start_ns
    return flags | (Flag.BLOCKING if blocked else Flag.ASYNC_OP)


def _beside(found: list[_HostCollective]) -> Iterator[Spans]:
    """What the host did around FSDP2's collectives: copies, and standing still."""
    for one in found:
        operation = one.operation
        if one.wait is None:
            continue
        if operation is None:
            yield Spans.build(
                1,
                kind=Kind.COLLECTIVE_WAIT,
                lane=Lane.COMPUTE,
                op=one.op,
                start_ns=one.wait[0],
                end_ns=one.wait[1],
            )
            continue
        gathers = one.kind == Kind.ALL_GATHER
        yield _beside_one(
            operation,
            Kind.COPY_IN if gathers else Kind.REDUCE_COPY_IN,
            (operation.span.start_ns, one.start_ns),
        )
        yield _beside_one(operation, WAIT_OF[one.kind], one.wait)
        if operation.copy_out is not None and gathers:
            copy_out = operation.copy_out
            since = max(copy_out.start_ns, min(one.wait[1], copy_out.end_ns))
            yield _beside_one(operation, Kind.COPY_OUT, (since, copy_out.end_ns))


def _beside_one(operation: Operation, kind: Kind, window: tuple[int, int]) -> Spans:
    return Spans.build(
        1,
        kind=kind,
        lane=Lane.COPY_IN if kind == Kind.COPY_IN else Lane.COMPUTE,
        phase=operation.phase,
        flags=operation.flags,
        micro_batch=operation.micro_batch,
        unit=operation.unit,
        by_unit=operation.by_unit,
        op=operation.op,
        start_ns=window[0],
        end_ns=window[1],
    )
