"""Device work to spans: kernels, collectives and copies, with unit and pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.fsdp2.nesting import Nesting, nest
from fsdpdoctor.importers.fsdp2.passes import autograd_rows, autograd_threads
from fsdpdoctor.importers.kineto.attribution import Context, SpansWithHostTime, pick
from fsdpdoctor.importers.kineto.communication import (
    Collective,
    Communication,
    collectives_of,
)
from fsdpdoctor.importers.kineto.kernels import operation_name
from fsdpdoctor.importers.kineto.launches import DeviceWork, work_blocks
from fsdpdoctor.importers.kineto.process_groups import sequence_numbers
from fsdpdoctor.importers.kineto.unlabelled_units import Unlabelled, units_by_order
from fsdpdoctor.importers.reader.trace_file import (
    Bools,
    Cat,
    Int64s,
    names_that,
    rows_named,
)
from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    Flag,
    Hook,
    Kind,
    Lane,
    Phase,
    Spans,
    numbered,
    one_of,
)
from fsdpdoctor.storage.spill import Shelf

LANE_OF = {
    Kind.ALL_GATHER: Lane.ALL_GATHER,
    Kind.REDUCE_SCATTER: Lane.REDUCE_SCATTER,
    Kind.ALL_REDUCE: Lane.ALL_REDUCE,
    Kind.COLLECTIVE: Lane.OTHER_COMM,
}

_COPY_IN_OP = "fsdp::all_gather_copy_in"

LABELS = {label: index for index, label in enumerate(Hook)}
_ALL_GATHER = LABELS[Hook.ALL_GATHER]
_COPY_OUT = LABELS[Hook.ALL_GATHER_COPY_OUT]
_REDUCE = LABELS[Hook.POST_BACKWARD_REDUCE]
_REDUCTIONS = (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Labels:
    """What a trace's L labels say of the work launched under them: by label, and last
    what UNKNOWN finds.
    """

    context: Context
    kind: npt.NDArray[np.int8]  # [L + 1] its place in `LABELS`, or UNKNOWN
    op: Int64s  # [L + 1]
    said: Int64s  # [L + 1, 5] by op: unit, by_unit, phase, flags, micro_batch
    backward_tids: Int64s  # without labels: the threads of backward
    evaluated: Nesting  # autograd's operators on the threads of forward

    @classmethod
    def of(cls, context: Context) -> _Labels:
        spans, operations = context.tree.spans, context.operations
        op = np.full(len(spans) + 1, UNKNOWN, dtype=np.int64)
        for index, one in operations.of_label.items():
            op[index] = one
        said = np.full((len(spans) + 1, 5), UNKNOWN, dtype=np.int64)
        for it in operations.by_op.values():
            said[it.op] = (it.unit, it.by_unit, it.phase, it.flags, it.micro_batch)
        return cls(
            context=context,
            kind=np.array([*(LABELS[s.label] for s in spans), UNKNOWN], dtype=np.int8),
            op=op,
            said=said,
            backward_tids=(backward := autograd_threads(context.trace)),
            evaluated=_evaluated_elsewhere(context, backward),
        )


def _evaluated_elsewhere(context: Context, backward_tids: Int64s) -> Nesting:
    """What autograd ran on no thread of its own, as with one thread for both passes."""
    rows = autograd_rows(context.trace)
    tids = context.trace.events.tid[rows]
    return nest(context.trace.events, rows[~one_of(tids, backward_tids)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Seen:
    """What a first look at all device work finds."""

    apart: Int64s  # [A] rows of work where one says something of another
    device: _Device  # of them
    compute_stream: int  # runs most of the kernels' time


@dataclass(slots=True, kw_only=True, eq=False)
class _Device:
    """The columns of some of the device's spans while they are found out. N rows."""

    labels: _Labels
    work: DeviceWork
    label_kind: npt.NDArray[np.int8]  # of the innermost label at the launch
    op: Int64s
    kind: npt.NDArray[np.int8]
    lane: npt.NDArray[np.int8]
    is_comm: Bools
    start_ns: Int64s
    end_ns: Int64s
    bytes: Int64s
    name: npt.NDArray[np.int32]
    group: npt.NDArray[np.int32]
    seq: Int64s
    by_order: Bools  # unit and phase, below, are told by order
    unit: npt.NDArray[np.int32]
    phase: npt.NDArray[np.int8]
    keep: Bools

    @property
    def context(self) -> Context:
        return self.labels.context


_FOUND_APART = (
    *("kind", "lane", "is_comm", "end_ns", "bytes", "name", "group", "seq"),
    *("by_order", "unit", "phase"),
)
"""The columns of a `_Device` that are found out where all communication is seen."""


def device_spans(context: Context, work: DeviceWork) -> SpansWithHostTime:
    """All device work of a trace, by start.

    Communication, of which one kernel says something of another, is read as a whole;
    all else, which is nearly all there is, a block at a time.
    """
    if not len(work):
        return SpansWithHostTime(spans=Spans.build(0), host_ns=work.host_ns)
    labels = _Labels.of(context)
    seen = _look_through(labels, work)
    apart = seen.device
    _copy_engine_gathers(apart)
    _collectives(apart)
    keep = np.ones(len(work), dtype=np.bool_)
    keep[seen.apart] = apart.keep
    shelf, begin = Shelf(Spans.columns()), 0
    for some in work_blocks(context.trace, work):
        device = _begin(labels, some, np.zeros(len(some), dtype=np.bool_))
        first, last = np.searchsorted(seen.apart, (begin, begin + len(some)))
        own = seen.apart[first:last] - begin
        for name in _FOUND_APART:
            getattr(device, name)[own] = getattr(apart, name)[first:last]
        _copies(device, seen.compute_stream)
        spans, kept = _spans(device), keep[begin : begin + len(some)]
        shelf.put((spans if kept.all() else spans.rows(kept)).items())
        begin += len(some)
    spans = Spans(**shelf.take())  # type: ignore[arg-type]
    host_ns = work.host_ns if keep.all() else work.host_ns[keep]
    return SpansWithHostTime(spans=spans, host_ns=host_ns)


def _look_through(labels: _Labels, work: DeviceWork) -> _Seen:
    """Find what is communication, and the stream of compute."""
    context, events = labels.context, labels.context.trace.events
    communication = Communication.of(context)
    spent: dict[int, int] = {}  # nanoseconds, by stream
    apart, devices, begin = [], [], 0
    for some in work_blocks(context.trace, work):
        comm, cat = communication.among(some), events.cat[some.event]
        moves = comm.copy()
        copies = np.flatnonzero(cat == Cat.MEMCPY)
        at = some.rows(copies)
        under = context.tree.innermost(at.tid, at.launched_ns)
        moves[copies] = labels.kind[under] == _ALL_GATHER
        rows = np.flatnonzero(moves)
        apart.append(begin + rows)
        devices.append(_begin(labels, some.rows(rows), comm[rows]))
        kernels = some.event[(cat == Cat.KERNEL) & ~comm]
        streams, which = numbered(events.stream[kernels])
        sums = np.bincount(which, events.duration_ns[kernels])
        for stream, took in zip(streams.tolist(), sums.tolist(), strict=True):
            spent[stream] = spent.get(stream, 0) + int(took)
        begin += len(some)
    return _Seen(
        apart=np.concatenate(apart),
        device=_joined(devices),
        compute_stream=max(sorted(spent), key=spent.__getitem__, default=UNKNOWN),
    )


def _joined(parts: Sequence[_Device]) -> _Device:
    """All the rows of some, of which there is one at least."""
    names = [one.name for one in fields(_Device) if one.name not in ("labels", "work")]
    return _Device(
        labels=parts[0].labels,
        work=DeviceWork.concat([part.work for part in parts]),
        **{name: np.concatenate([getattr(p, name) for p in parts]) for name in names},
    )


def _begin(labels: _Labels, work: DeviceWork, is_comm: Bools) -> _Device:
    events = labels.context.trace.events
    rows = work.event
    count = len(rows)
    cat = events.cat[rows]
    label = labels.context.tree.innermost(work.tid, work.launched_ns)
    kind = np.full(count, Kind.KERNEL, dtype=np.int8)
    kind[cat == Cat.MEMCPY] = Kind.MEMCPY
    kind[cat == Cat.MEMSET] = Kind.MEMSET
    return _Device(
        labels=labels,
        work=work,
        label_kind=labels.kind[label],
        op=labels.op[label],
        kind=kind,
        lane=np.where(cat == Cat.KERNEL, Lane.COMPUTE, Lane.COPY).astype(np.int8),
        is_comm=is_comm,
        start_ns=events.start_ns[rows],
        end_ns=events.ends(rows),
        bytes=events.bytes[rows],
        name=events.name[rows],
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
    kinds = [
        _kind_of(device, at, one) for at, one in zip(which.tolist(), found, strict=True)
    ]
    # A copy engine's gather keeps the bytes of its copies if nothing says more.
    sizes = np.array([one.bytes for one in found], dtype=np.int64)
    says = (device.kind[which] == Kind.KERNEL) | (sizes != UNKNOWN)
    device.bytes[which[says]] = sizes[says]
    device.lane[which] = [LANE_OF[kind] for kind in kinds]
    device.kind[which] = kinds
    device.group[which] = [one.group for one in found]
    device.seq[which] = [one.seq for one in found]
    for at, kind, one in zip(which.tolist(), kinds, found, strict=True):
        if kind == Kind.COLLECTIVE:
            device.name[at] = context.names.id(operation_name(one.said_by))
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
    bare = ~one_of(device.label_kind[which], (_ALL_GATHER, _REDUCE))
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
    launched = device.work.launched_ns[at] != NO_TIME
    if device.context.has_labels and launched:
        return Kind.COLLECTIVE  # somebody else's: tensor parallel, gradient norm
    if collective.kind in _REDUCTIONS and not _by_autograd(device, at):
        return Kind.COLLECTIVE  # not known to reduce a gradient
    return collective.kind


def _by_autograd(device: _Device, at: int) -> bool:
    """Whether autograd launched it, itself or by a hook of DDP's or FSDP's."""
    labels, work = device.labels, device.work
    if work.launched_ns[at] == NO_TIME:
        return False
    if work.tid[at] in labels.backward_tids:
        return True
    row = np.array([at])
    under = labels.evaluated.innermost(work.tid[row], work.launched_ns[row])
    return bool(under[0] != UNKNOWN)


def _copies(device: _Device, compute_stream: int) -> None:
    """FSDP2's copy kernels around its collectives."""
    moved = (device.kind == Kind.KERNEL) | (device.kind == Kind.MEMCPY)
    own = moved & ~device.is_comm
    gather = own & (device.label_kind == _ALL_GATHER)
    device.kind[gather] = Kind.COPY_IN
    device.lane[gather] = Lane.COPY_IN
    copy_out = own & (device.label_kind == _COPY_OUT)
    device.kind[copy_out] = Kind.COPY_OUT
    device.lane[copy_out] = Lane.COMPUTE
    stream = device.context.trace.events.stream[device.work.event]
    reduce = own & (device.label_kind == _REDUCE) & (stream == compute_stream)
    # On the compute stream FSDP2 only copies gradients into the reduce-scatter's
    # input; what follows the collective runs on its stream.
    device.kind[reduce] = Kind.REDUCE_COPY_IN
    device.lane[reduce] = Lane.COMPUTE


def _copy_engine_gathers(device: _Device) -> None:
    """All-gathers that copy engines ran: memcpys under a label without a kernel.

    (pytorch#176418.) The copies of one gather make one span.
    """
    context, work = device.context, device.work
    trace = context.trace
    copies = (trace.events.cat[work.event] == Cat.MEMCPY) & (
        device.label_kind == _ALL_GATHER
    )
    by_kernel = device.op[device.is_comm & (device.label_kind == _ALL_GATHER)]
    copies &= ~one_of(device.op, by_kernel)
    if not copies.any():
        return
    named = names_that(trace, lambda name: name.startswith(_COPY_IN_OP))
    copy_in = nest(trace.events, rows_named(trace, (Cat.CPU_OP,), named))
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
    count = len(work)
    at = passes.at(work.launched_ns)
    unit = pick(passes.unit, at, UNKNOWN).astype(np.int32)
    phase = pick(passes.phase, at, Phase.OTHER).astype(np.int8)
    recompute = pick(passes.recompute, at, 0)
    flags = np.where(recompute, Flag.RECOMPUTE, Flag.NONE).astype(np.int16)
    micro_batch = pick(passes.micro_batch, at, UNKNOWN).astype(np.int32)
    by_unit = np.full(count, UNKNOWN, dtype=np.int32)
    if not context.has_labels:
        backward = one_of(work.tid, device.labels.backward_tids)
        phase[backward & (work.tid != UNKNOWN)] = Phase.BACKWARD
    rows = np.flatnonzero(device.op != UNKNOWN)
    said = device.labels.said[device.op[rows]].T
    unit[rows], by_unit[rows], phase[rows], flags[rows], micro_batch[rows] = said
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
        stream=context.trace.events.stream[work.event],
        name=device.name,
        value=np.full(count, UNKNOWN, dtype=np.int64),
    )
