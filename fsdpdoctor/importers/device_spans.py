"""Device work to spans: kernels, collectives and copies, with unit and pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.context import Context, Placed, pick
from fsdpdoctor.importers.device_comm import (
    Collective,
    collectives_of,
    communication,
)
from fsdpdoctor.importers.device_order import Unlabelled, units_by_order
from fsdpdoctor.importers.groups import sequence_numbers
from fsdpdoctor.importers.kernels import operation_name
from fsdpdoctor.importers.labels import Label
from fsdpdoctor.importers.launches import DeviceWork
from fsdpdoctor.importers.nesting import nest
from fsdpdoctor.importers.passes import autograd_threads
from fsdpdoctor.importers.trace_events import Cat, Int64s, starts_with
from fsdpdoctor.schema import NO_TIME, UNKNOWN, Flag, Kind, Lane, Phase, Spans

LANE_OF = {
    Kind.ALL_GATHER: Lane.ALL_GATHER,
    Kind.REDUCE_SCATTER: Lane.REDUCE_SCATTER,
    Kind.ALL_REDUCE: Lane.ALL_REDUCE,
    Kind.COLLECTIVE: Lane.OTHER_COMM,
}

_COPY_IN_OP = "fsdp::all_gather_copy_in"

LABELS = {label: index for index, label in enumerate(Label)}
_ALL_GATHER = LABELS[Label.ALL_GATHER]
_COPY_OUT = LABELS[Label.ALL_GATHER_COPY_OUT]
_REDUCE = LABELS[Label.POST_BACKWARD_REDUCE]


@dataclass(slots=True, kw_only=True, eq=False)
class _Device:
    """The columns of the device's spans while they are found out. N rows."""

    context: Context
    work: DeviceWork
    label: Int64s  # innermost label at the launch, or UNKNOWN
    label_kind: npt.NDArray[np.int8]  # its place in `LABELS`, or UNKNOWN
    op: Int64s
    kind: npt.NDArray[np.int8]
    lane: npt.NDArray[np.int8]
    is_comm: npt.NDArray[np.bool_]
    start_ns: Int64s
    end_ns: Int64s
    bytes: Int64s
    name: npt.NDArray[np.int32]
    group: npt.NDArray[np.int32]
    seq: Int64s
    by_order: npt.NDArray[np.bool_]  # unit and phase, below, are told by order
    unit: npt.NDArray[np.int32]
    phase: npt.NDArray[np.int8]
    keep: npt.NDArray[np.bool_]


def device_spans(context: Context, work: DeviceWork) -> Placed:
    """All device work of a trace, by start."""
    device = _begin(context, work)
    _copy_engine_gathers(device)
    _collectives(device)
    _copies(device)
    spans = _spans(device)  # by start, as `work` is
    if device.keep.all():
        return Placed(spans=spans, host_ns=work.host_ns)
    return Placed(spans=spans.rows(device.keep), host_ns=work.host_ns[device.keep])


def _begin(context: Context, work: DeviceWork) -> _Device:
    events = context.trace.events
    rows = work.rows
    count = len(rows)
    cat = events.cat[rows]
    label = context.tree.innermost(work.tid, work.launched_ns)
    kinds = np.array(
        [*(LABELS[span.label] for span in context.tree.spans), UNKNOWN], dtype=np.int8
    )
    ops = np.full(len(context.tree.spans) + 1, UNKNOWN, dtype=np.int64)
    for index, op in context.operations.of_label.items():
        ops[index] = op
    kind = np.full(count, Kind.KERNEL, dtype=np.int8)
    kind[cat == Cat.MEMCPY] = Kind.MEMCPY
    kind[cat == Cat.MEMSET] = Kind.MEMSET
    return _Device(
        context=context,
        work=work,
        label=label,
        label_kind=kinds[label],
        op=ops[label],
        kind=kind,
        lane=np.where(cat == Cat.KERNEL, Lane.COMPUTE, Lane.COPY).astype(np.int8),
        is_comm=communication(context, work),
        start_ns=events.start_ns[rows],
        end_ns=events.end_ns[rows],
        bytes=events.bytes[rows],
        name=events.name[rows].copy(),
        group=np.full(count, UNKNOWN, dtype=np.int32),
        seq=np.full(count, UNKNOWN, dtype=np.int64),
        by_order=np.zeros(count, dtype=np.bool_),
        unit=np.full(count, UNKNOWN, dtype=np.int32),
        phase=np.full(count, Phase.OTHER, dtype=np.int8),
        keep=np.ones(count, dtype=np.bool_),
    )


def _collectives(device: _Device) -> None:
    """Kinds, lanes, bytes, groups and numbers of the communication kernels."""
    context, work = device.context, device.work
    which = np.flatnonzero(device.is_comm).astype(np.int64)
    found = collectives_of(context, work, which)
    for at, collective in zip(which.tolist(), found, strict=True):
        kind = _kind_of(device, at, collective)
        device.lane[at] = LANE_OF[kind]
        # A copy engine's gather keeps the bytes of its copies if nothing says more.
        if device.kind[at] == Kind.KERNEL or collective.bytes != UNKNOWN:
            device.bytes[at] = collective.bytes
        device.kind[at] = kind
        device.group[at] = collective.group
        device.seq[at] = collective.seq
        if kind == Kind.COLLECTIVE:
            device.name[at] = context.names.id(operation_name(collective.said_by))
    device.seq[which] = sequence_numbers(
        device.group[which].astype(np.int64), device.seq[which], work.host_ns[which]
    )
    said = np.array([one.kind for one in found], dtype=np.int64)
    _units_by_order(device, which, said)


def _units_by_order(device: _Device, which: Int64s, said: Int64s) -> None:
    """Units of the collectives that no label covers and no other reader owns.

    Where there are labels, a collective without one is somebody else's, unless a CUDA
    graph replayed it. `said`: their kinds, as they are named.
    """
    context, work = device.context, device.work
    bare = ~np.isin(device.label_kind[which], (_ALL_GATHER, _REDUCE))
    if context.has_labels:
        bare &= work.in_graph[which]
    at = which[bare]
    gathers = np.flatnonzero(
        (device.label_kind == _ALL_GATHER) & (device.kind == Kind.ALL_GATHER)
    )
    unit_of = {op: one.unit for op, one in context.operations.by_op.items()}
    forward = {
        op for op, one in context.operations.by_op.items() if one.phase == Phase.FORWARD
    }
    labelled: dict[int, int] = {}
    for row in gathers.tolist():
        if (op := int(device.op[row])) in forward:
            labelled.setdefault(unit_of[op], int(device.bytes[row]))
    ordered = units_by_order(
        context,
        Unlabelled(
            kind=said[bare],
            bytes=device.bytes[at],
            group=device.group[at].astype(np.int64),
            host_ns=work.host_ns[at],
        ),
        labelled,
    )
    rows = at[ordered.at]
    device.by_order[rows] = True
    device.unit[rows] = ordered.unit
    device.phase[rows] = ordered.phase
    device.kind[rows] = said[bare][ordered.at]
    for kind, lane in LANE_OF.items():
        device.lane[rows[device.kind[rows] == kind]] = lane


def _kind_of(device: _Device, at: int, collective: Collective) -> Kind:
    """A collective's kind: FSDP2's own by its label, else by what names it."""
    label = device.label_kind[at]
    if label == _ALL_GATHER:
        return Kind.ALL_GATHER
    if label == _REDUCE:
        reduces = collective.kind == Kind.ALL_REDUCE
        return Kind.ALL_REDUCE if reduces else Kind.REDUCE_SCATTER
    if device.context.has_labels and device.work.launched_ns[at] != NO_TIME:
        return Kind.COLLECTIVE  # somebody else's: tensor parallel, gradient norm
    return collective.kind


def _copies(device: _Device) -> None:
    """FSDP2's copy kernels around its collectives."""
    moved = (device.kind == Kind.KERNEL) | (device.kind == Kind.MEMCPY)
    own = moved & ~device.is_comm
    gather = own & (device.label_kind == _ALL_GATHER)
    device.kind[gather] = Kind.COPY_IN
    device.lane[gather] = Lane.COPY_IN
    copy_out = own & (device.label_kind == _COPY_OUT)
    device.kind[copy_out] = Kind.COPY_OUT
    device.lane[copy_out] = Lane.COMPUTE
    reduce = own & (device.label_kind == _REDUCE)
    reduce &= device.context.trace.events.stream[device.work.rows] == _compute_stream(
        device
    )
    # On the compute stream FSDP2 only copies gradients into the reduce-scatter's
    # input; what follows the collective runs on its stream.
    device.kind[reduce] = Kind.REDUCE_COPY_IN
    device.lane[reduce] = Lane.COMPUTE


def _compute_stream(device: _Device) -> int:
    """The stream that runs most of the kernels' time."""
    kernels = (device.kind == Kind.KERNEL) & ~device.is_comm
    streams, at = np.unique(
        device.context.trace.events.stream[device.work.rows][kernels],
        return_inverse=True,
    )
    if not len(streams):
        return UNKNOWN
    spent = np.bincount(at, (device.end_ns - device.start_ns)[kernels])
    return int(streams[int(np.argmax(spent))])


def _copy_engine_gathers(device: _Device) -> None:
    """All-gathers that copy engines ran: memcpys under a label without a kernel.

    (pytorch#176418.) The copies of one gather make one span.
    """
    context, work = device.context, device.work
    copies = (context.trace.events.cat[work.rows] == Cat.MEMCPY) & (
        device.label_kind == _ALL_GATHER
    )
    by_kernel = device.op[device.is_comm & (device.label_kind == _ALL_GATHER)]
    copies &= ~np.isin(device.op, by_kernel)
    if not copies.any():
        return
    events = context.trace.events
    named = np.array(starts_with(context.trace.names, (_COPY_IN_OP,)), dtype=np.bool_)
    copy_in = nest(events, (events.cat == Cat.CPU_OP) & named[events.name])
    copies &= copy_in.innermost(work.tid, work.launched_ns) == UNKNOWN
    rows = np.flatnonzero(copies)
    rows = rows[np.argsort(device.op[rows], kind="stable")]
    begins = np.flatnonzero(np.diff(device.op[rows], prepend=UNKNOWN))
    first = rows[begins]
    device.end_ns[first] = np.maximum.reduceat(device.end_ns[rows], begins)
    unknown = np.minimum.reduceat(device.bytes[rows], begins) < 0
    sizes = np.add.reduceat(device.bytes[rows], begins)
    device.bytes[first] = np.where(unknown, UNKNOWN, sizes)
    device.keep[rows] = False
    device.keep[first] = True
    device.is_comm[first] = True


def _spans(device: _Device) -> Spans:
    context, work = device.context, device.work
    passes = context.passes
    count = len(work.rows)
    at = passes.at(work.launched_ns)
    unit = pick(passes.unit, at, UNKNOWN).astype(np.int32)
    phase = pick(passes.phase, at, Phase.OTHER).astype(np.int8)
    recompute = pick(passes.recompute, at, 0)
    flags = np.where(recompute, Flag.RECOMPUTE, Flag.NONE).astype(np.int16)
    micro_batch = pick(passes.micro_batch, at, UNKNOWN).astype(np.int32)
    by_unit = np.full(count, UNKNOWN, dtype=np.int32)
    if not context.has_labels:
        backward = np.isin(work.tid, autograd_threads(context.trace)) & (
            work.tid != UNKNOWN
        )
        phase[backward] = Phase.BACKWARD
    said = np.full((len(context.tree.spans) + 1, 5), UNKNOWN, dtype=np.int64)
    for one in context.operations.by_op.values():
        said[one.op] = (one.unit, one.by_unit, one.phase, one.flags, one.micro_batch)
    rows = np.flatnonzero(device.op != UNKNOWN)
    unit[rows], by_unit[rows], phase[rows], flags[rows], micro_batch[rows] = said[
        device.op[rows]
    ].T
    rows = np.flatnonzero(device.by_order)
    unit[rows], phase[rows] = device.unit[rows], device.phase[rows]
    flags[rows] |= Flag.BY_ORDER
    others = device.kind == Kind.COLLECTIVE
    unit[others] = UNKNOWN
    # Not `build`, which would copy every column.
    return Spans(
        kind=device.kind,
        lane=device.lane,
        phase=phase,
        flags=flags,
        micro_batch=micro_batch,
        unit=unit,
        by_unit=by_unit,
        op=device.op,
        start_ns=device.start_ns,
        end_ns=device.end_ns,
        issued_ns=np.where(work.by_call, work.launched_ns, NO_TIME),
        bytes=device.bytes,
        group=device.group,
        seq=device.seq,
        stream=context.trace.events.stream[work.rows],
        name=device.name,
        value=np.full(count, UNKNOWN, dtype=np.int64),
    )
