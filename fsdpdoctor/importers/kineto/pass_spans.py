"""Forwards, backwards and optimizer steps as spans of the compute lane."""

from __future__ import annotations

import numpy as np

from fsdpdoctor.importers.fsdp2.passes import PassSpan, optimizer_windows
from fsdpdoctor.importers.kineto.attribution import Context, SpansWithHostTime
from fsdpdoctor.importers.kineto.launch_windows import on_compute_lane, ran_within
from fsdpdoctor.importers.reader.trace_file import Int64s
from fsdpdoctor.schema import NO_TIME, UNKNOWN, Flag, Kind, Lane, Phase, Spans


def _windows(context: Context) -> list[PassSpan]:
    """The passes on the host, micro-batches left out."""
    passes = [s for s in context.passes.spans if s.kind != Kind.MICRO_BATCH]
    optimizers = [
        PassSpan(
            kind=Kind.OPTIMIZER,
            unit=UNKNOWN,
            phase=Phase.OPTIMIZER,
            flags=Flag.NONE,
            micro_batch=UNKNOWN,
            start_ns=start,
            end_ns=end,
        )
        for start, end in optimizer_windows(context.trace)
    ]
    return passes + optimizers


def _as_spans(passes: list[PassSpan], start_ns: Int64s, end_ns: Int64s) -> Spans:
    return Spans.build(
        len(passes),
        kind=[one.kind for one in passes],
        lane=Lane.COMPUTE,
        phase=[one.phase for one in passes],
        flags=[one.flags for one in passes],
        micro_batch=[one.micro_batch for one in passes],
        unit=[one.unit for one in passes],
        start_ns=start_ns,
        end_ns=end_ns,
    )


def passes_on_host(context: Context) -> SpansWithHostTime:
    """Where the host is the compute lane: the passes as they were called."""
    passes = _windows(context)
    start_ns = np.array([one.start_ns for one in passes], dtype=np.int64)
    end_ns = np.array([one.end_ns for one in passes], dtype=np.int64)
    return SpansWithHostTime(
        spans=_as_spans(passes, start_ns, end_ns), host_ns=start_ns
    )


def passes_on_device(context: Context, device: SpansWithHostTime) -> SpansWithHostTime:
    """From the first to the last kernel that a pass launched on the compute lane.

    A pass that launched none has no span.
    """
    passes = _windows(context)
    starts = np.array([one.start_ns for one in passes], dtype=np.int64)
    ends = np.array([one.end_ns for one in passes], dtype=np.int64)
    work = on_compute_lane(device.spans, device.spans.issued_ns)
    ran = ran_within(work, starts, ends)
    some = np.flatnonzero(ran.start_ns != NO_TIME)
    kept = [passes[i] for i in some.tolist()]
    spans = _as_spans(kept, ran.start_ns[some], ran.end_ns[some])
    return SpansWithHostTime(spans=spans, host_ns=starts[some])
