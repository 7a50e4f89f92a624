"""What a trace itself says against trusting it: counted, and put into sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.importers.kineto.attribution import Context
from fsdpdoctor.importers.kineto.kernels import is_graph_launch
from fsdpdoctor.importers.kineto.launches import DeviceWork, work_blocks
from fsdpdoctor.importers.kineto.process_groups import BY_ORDER
from fsdpdoctor.importers.reader.trace_file import (
    Cat,
    Events,
    Health,
    Int64s,
    TraceFile,
)
from fsdpdoctor.quantities import count
from fsdpdoctor.schema import Flag, Kind, Lane, Spans

OVERLAP_FLOOR_NS = 2_000
"""Kernels of one stream cannot overlap; microsecond clocks make neighbours collide by
up to 1 us at each end (AMD-AGI/TraceLens#669), so only more than that is counted."""

UNRELIABLE_SHARE = 0.01
"""Overlapping kernels among all, above which durations are called unreliable. Sound
NVIDIA traces have none; a stray one must not condemn a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """Counts of what cannot be."""

    kernels: int
    overlapping: int  # begin before the kernel before them on their stream ended
    before_launch: int  # start before the host launched them
    zero_length: int
    unlaunched: int  # without a launch in the trace

    def counts(self) -> dict[str, int]:
        """For `RankHeader.health`; only what was found."""
        found = {
            "kernels_overlapping_on_a_stream": self.overlapping,
            "kernels_before_their_launch": self.before_launch,
            "kernels_of_no_length": self.zero_length,
            "kernels_without_a_launch": self.unlaunched,
        }
        return {name: number for name, number in found.items() if number}


def device_health(trace: TraceFile, work: DeviceWork) -> DeviceHealth:
    """Check a trace's device work."""
    events = trace.events
    kernels = overlapping = before_launch = zero_length = unlaunched = 0
    last = np.empty(0, dtype=np.int64)  # rows of the last kernel of every stream
    for some in work_blocks(trace, work):
        rows = some.event[events.cat[some.event] == Cat.KERNEL].astype(np.int64)
        lasting = rows[events.duration_ns[rows] > 0]
        found, last = _overlapping(events, np.concatenate((last, lasting)))
        kernels += len(rows)
        overlapping += found
        before = events.start_ns[some.event] < some.launched_ns
        before_launch += int((before & some.by_call).sum())
        zero_length += len(rows) - len(lasting)
        unlaunched += int((~some.by_call).sum())
    return DeviceHealth(
        kernels=kernels,
        overlapping=overlapping,
        before_launch=before_launch,
        zero_length=zero_length,
        unlaunched=unlaunched,
    )


def _overlapping(events: Events, rows: Int64s) -> tuple[int, Int64s]:
    """How many of some kernels, by start, begin before the one before them on their
    stream has ended; and the last of every stream.
    """
    device, stream = events.device[rows], events.stream[rows]
    order = np.lexsort((stream, device))
    device, stream, rows = device[order], stream[order], rows[order]
    same = (device[1:] == device[:-1]) & (stream[1:] == stream[:-1])
    late_by = events.ends(rows[:-1]) - events.start_ns[rows[1:]]
    is_last = np.ones(len(rows), dtype=np.bool_)
    is_last[:-1] = ~same
    return int((same & (late_by > OVERLAP_FLOOR_NS)).sum()), rows[is_last]


def warnings(
    context: Context, spans: Spans, health: DeviceHealth, steps: Sequence[object]
) -> Iterator[str]:
    """What a reader of the report must know of this file."""
    yield from _of_file(context.trace.health)
    yield from _of_capture(context.trace)
    if not steps:
        yield (
            "the trace has no whole step: no ProfilerStep#N marks and no two optimizer "
            "steps; call profiler.step() after each step. Its figures are of the "
            "capture as a whole"
        )
    yield from _of_communication(context, spans)
    if health.kernels and health.overlapping > UNRELIABLE_SHARE * health.kernels:
        yield (
            f"{count(health.overlapping, 'kernel')} began before the one before them "
            "on the same stream had ended: durations in this trace are not reliable"
        )


def _of_file(health: Health) -> Iterator[str]:
    if health.truncated_at is not None:
        yield (
            f"the file breaks off at byte {health.truncated_at:,} (unpacked): events "
            "after it are missing, and traces are not in order of time, so steps may "
            "lack kernels"
        )
    if health.repaired:
        yield (
            f"{count(health.repaired, 'event')} of damaged JSON were repaired, the "
            f"first near byte {health.damaged_at:,}"
        )
    if health.dropped:
        yield (
            f"{count(health.dropped, 'event')} of {health.events:,} were dropped: "
            "beyond repair, without a time, or of negative duration"
        )


_INFLATING = {
    "with_stack": "stacks were recorded (with_stack)",
    "record_shapes": "shapes were recorded (record_shapes)",
    "profile_memory": "memory was recorded (profile_memory)",
}


def _of_capture(trace: TraceFile) -> Iterator[str]:
    for key, what in _INFLATING.items():
        if trace.metadata.get(key):
            yield f"{what}: host times are inflated by the profiler itself"


def _of_communication(context: Context, spans: Spans) -> Iterator[str]:
    trace = context.trace
    comm = np.isin(
        spans.kind,
        (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.COLLECTIVE),
    )
    called = len(context.comm_ops.rows)
    if called and not comm.any():
        on_device = bool((trace.events.cat == Cat.KERNEL).any())
        yield (
            f"communication was called ({count(called, 'event')} on the host) and "
            + ("no kernel of it" if on_device else "no device activity")
            + " was captured: overlap and exposed time are not measured. Profile with "
            "ProfilerActivity.CUDA, from before the step begins"
        )
    if any(spec.name == BY_ORDER for spec in context.groups.specs):
        yield (
            "collectives name no process group: they are matched between ranks by "
            "their order, which is right only if the captures began at the same step"
        )
    by_order = spans.flags & Flag.BY_ORDER != 0
    if not context.has_labels and not by_order.any() and (comm.any() or called):
        yield (
            "no FSDP:: labels: collectives are not attributed to FSDP2 units. Traces "
            "of fully_shard models have them where torch.profiler records CPU activity"
        )
    if any(is_graph_launch(name) for name in trace.names):
        yield (
            "CUDA graphs were launched: their kernels share one launch, so labels and "
            "issue times inside graphs are not known"
        )
    yield from _of_order(context, spans)
    unlabelled = (spans.lane == Lane.OTHER_COMM) & context.has_labels
    if unlabelled.any():
        yield (
            f"{count(int(unlabelled.sum()), 'collective')} were launched outside "
            "FSDP2: shown as other communication"
        )


def _of_order(context: Context, spans: Spans) -> Iterator[str]:
    told = int((spans.flags & Flag.BY_ORDER != 0).sum())
    if not told:
        return
    names = (
        "they have the names that labels gave in other steps"
        if context.has_labels
        else "no FSDP:: label names them, so they are numbered by forward order"
    )
    yield (
        f"units of {count(told, 'collective')} are told from sizes and order alone, "
        f"with low confidence: {names}"
    )
