"""Host events to spans: FSDP2's hooks, synchronising calls, input.

Launches are none: each piece of device work carries its own, as `issued_ns`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fsdpdoctor.importers.fsdp2.passes import annotation_rows
from fsdpdoctor.importers.kineto.attribution import Context, SpansWithHostTime, pick
from fsdpdoctor.importers.kineto.kernels import SYNCHRONIZING_CALLS
from fsdpdoctor.importers.reader.trace_file import Cat, Int64s, names_that, rows_named
from fsdpdoctor.schema import UNKNOWN, Flag, Hook, Kind, Lane, Phase, Spans

INPUT_PREFIX = "enumerate(DataLoader)#"
"""What torch.utils.data calls its annotation around the wait for a batch."""

HOST_KINDS: dict[Hook, Kind] = {
    Hook.ALL_GATHER: Kind.UNSHARD,
    Hook.POST_BACKWARD_RESHARD: Kind.RESHARD,
    Hook.POST_BACKWARD_REDUCE: Kind.REDUCE,
    Hook.PRE_FORWARD: Kind.HOOK,
    Hook.POST_FORWARD: Kind.HOOK,
    Hook.PRE_BACKWARD: Kind.HOOK,
    Hook.POST_BACKWARD_ACCUMULATE: Kind.HOOK,
    Hook.ROOT_PRE_FORWARD: Kind.HOOK,
    Hook.INPUTS_TO_DEVICE: Kind.HOOK,
    Hook.CAST_FORWARD_INPUTS: Kind.HOOK,
    Hook.CAST_FORWARD_OUTPUTS: Kind.HOOK,
    Hook.ROOT_POST_BACKWARD_CALLBACK: Kind.HOOK,
}
"""What each label is on the host. The others (copy-out, waits, prefetch) say where
device work belongs, or lie around an all-gather's."""


def host_spans(context: Context) -> SpansWithHostTime:
    """All host spans of a trace, by start."""
    parts = [
        _label_spans(context),
        _calls(context, Kind.SYNC, SYNCHRONIZING_CALLS.__contains__),
        _annotations(context, Kind.INPUT, INPUT_PREFIX),
        _micro_batches(context),
    ]
    spans = Spans.concat(parts)
    spans = spans.rows(np.argsort(spans.start_ns, kind="stable"))
    return SpansWithHostTime(spans=spans, host_ns=spans.start_ns)


def _label_spans(context: Context) -> Spans:
    tree, passes = context.tree, context.passes
    indices = tree.of(*HOST_KINDS)
    labels = [tree.spans[i] for i in indices]
    operations = [context.operation(i) for i in indices]
    starts = np.array([span.start_ns for span in labels], dtype=np.int64)
    at = passes.at(starts)
    said = [
        (op.phase, op.flags, op.by_unit, op.op)
        if op is not None
        else (_hook_phase(context, i, int(pass_at)), Flag.NONE, UNKNOWN, UNKNOWN)
        for i, op, pass_at in zip(indices, operations, at, strict=True)
    ]
    columns = np.array(said, dtype=np.int64).reshape(-1, 4).T
    return Spans.build(
        len(labels),
        kind=[HOST_KINDS[span.label] for span in labels],
        lane=Lane.HOST,
        phase=columns[0],
        flags=columns[1],
        by_unit=columns[2],
        op=columns[3],
        unit=[span.unit for span in labels],
        micro_batch=[
            int(passes.micro_batch[i]) if i >= 0 else UNKNOWN for i in at.tolist()
        ],
        start_ns=starts,
        end_ns=[span.end_ns for span in labels],
        name=[context.names.id(str(span.label)) for span in labels],
    )


def _hook_phase(context: Context, label: int, pass_at: int) -> Phase:
    kind = context.tree.spans[label].label
    phase = Phase(int(context.passes.phase[pass_at])) if pass_at >= 0 else Phase.OTHER
    if kind in (
        Hook.PRE_BACKWARD,
        Hook.POST_BACKWARD_ACCUMULATE,
        Hook.POST_BACKWARD_RESHARD,
        Hook.ROOT_POST_BACKWARD_CALLBACK,
    ):
        return Phase.BACKWARD
    return Phase.BACKWARD if phase == Phase.BACKWARD else Phase.FORWARD


def _calls(context: Context, kind: Kind, is_one: Callable[[str], object]) -> Spans:
    trace = context.trace
    rows = rows_named(trace, (Cat.RUNTIME,), names_that(trace, is_one))
    return _rows_as_spans(context, rows.astype(np.int64), kind)


def _annotations(context: Context, kind: Kind, prefix: str) -> Spans:
    return _rows_as_spans(context, annotation_rows(context.trace, prefix), kind)


def _rows_as_spans(context: Context, rows: Int64s, kind: Kind) -> Spans:
    events, passes = context.trace.events, context.passes
    at = passes.at(events.start_ns[rows])
    return Spans.build(
        len(rows),
        kind=kind,
        lane=Lane.HOST,
        phase=pick(passes.phase, at, Phase.OTHER),
        micro_batch=pick(passes.micro_batch, at, UNKNOWN),
        unit=pick(passes.unit, at, UNKNOWN),
        start_ns=events.start_ns[rows],
        end_ns=events.ends(rows),
        name=events.name[rows],
    )


def _micro_batches(context: Context) -> Spans:
    found = [s for s in context.passes.spans if s.kind == Kind.MICRO_BATCH]
    return Spans.build(
        len(found),
        kind=Kind.MICRO_BATCH,
        lane=Lane.HOST,
        micro_batch=[span.micro_batch for span in found],
        start_ns=[span.start_ns for span in found],
        end_ns=[span.end_ns for span in found],
    )
