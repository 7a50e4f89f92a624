"""What a trace itself says against trusting it: counted, and put into sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.importers.kineto.attribution import Context
from fsdpdoctor.importers.kineto.cut_file import CutShort
from fsdpdoctor.importers.kineto.kernels import is_graph_launch
from fsdpdoctor.importers.kineto.launches import (
    DeviceWork,
    without_arguments,
    work_blocks,
)
from fsdpdoctor.importers.kineto.process_groups import BY_ORDER
from fsdpdoctor.importers.kineto.steps import StepWindow
from fsdpdoctor.importers.kineto.unknown_kernels import UnknownKernels
from fsdpdoctor.importers.reader.trace_file import (
    Cat,
    Events,
    Health,
    Int64s,
    TraceFile,
)
from fsdpdoctor.quantities import count, duration, percent
from fsdpdoctor.schema import NOT_CAPTURED, Flag, Kind, Lane, Spans, one_of

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
    bare: int  # without arguments: placed by their time alone

    def counts(self) -> dict[str, int]:
        """For `RankHeader.health`; only what was found."""
        found = {
            "kernels_overlapping_on_a_stream": self.overlapping,
            "kernels_before_their_launch": self.before_launch,
            "kernels_of_no_length": self.zero_length,
            "kernels_without_a_launch": self.unlaunched,
            "kernels_without_arguments": self.bare,
        }
        return {name: number for name, number in found.items() if number}


def device_health(trace: TraceFile, work: DeviceWork) -> DeviceHealth:
    """Check a trace's device work."""
    events = trace.events
    kernels = overlapping = before_launch = zero_length = unlaunched = bare = 0
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
        bare += int(without_arguments(events, some.event).sum())
    return DeviceHealth(
        kernels=kernels,
        overlapping=overlapping,
        before_launch=before_launch,
        zero_length=zero_length,
        unlaunched=unlaunched,
        bare=bare,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What was made of a trace, to say what it does not show."""

    spans: Spans  # without kernels
    health: DeviceHealth
    steps: Sequence[StepWindow]
    cut: CutShort
    unknown: UnknownKernels | None
    world_size: int


def warnings(context: Context, told: Told) -> Iterator[str]:
    """What a reader of the report must know of this file."""
    health, trace = told.health, context.trace
    yield from _of_file(trace.health)
    if told.cut.steps or told.cut.launches:
        yield told.cut.said(told.steps)
    yield from _of_capture(trace)
    yield from _of_categories(trace)
    if not told.steps:
        yield (
            "the trace has no whole step: no ProfilerStep#N marks, no two optimizer "
            "steps and no ranges named 'step N'; call profiler.step() after each step. "
            "Its figures are of the capture as a whole"
        )
    yield from _of_communication(context, told.spans, told.world_size)
    if told.unknown is not None:
        yield _of_unknown(told.unknown)
    if health.bare:
        yield (
            f"{count(health.bare, 'kernel')} have no arguments: they are placed by "
            "their own time and row; which call launched them, and for what, is not "
            "known"
        )
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


def _of_categories(trace: TraceFile) -> Iterator[str]:
    """Events that may be a device's work, of categories that are not read."""
    unread = trace.unread_device
    if not unread:
        return
    shown = ", ".join(f"{cat} ({events:,})" for cat, events in sorted(unread.items()))
    beside = (
        "no figure holds them"
        if (trace.events.cat == Cat.KERNEL).any()
        else "what the device did is not measured"
    )
    yield f"events of these categories are not read: {shown}; {beside}"


def _of_unknown(unknown: UnknownKernels) -> str:
    names = ", ".join(
        f"{name} ({duration(ns)})" for name, ns in list(unknown.ns.items())[:3]
    )
    more = len(unknown.ns) - 3
    return (
        f"kernels that are not known run on streams of their own: {names}"
        + (f" and {more} more" if more > 0 else "")
        + f", {percent(unknown.share)} of all kernels' time. They are counted as "
        "compute; if they communicate, overlap is less and exposed time more"
    )


_COMM_KINDS = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.COLLECTIVE)


def not_captured(context: Context, spans: Spans, world_size: int) -> dict[str, int]:
    """For `RankHeader.health`: the host's calls of communication, where none of it ran
    on the device in the trace. With one rank none does.
    """
    called = len(context.comm_ops.rows)
    if not called or world_size == 1 or one_of(spans.kind, _COMM_KINDS).any():
        return {}
    return {NOT_CAPTURED: called}


def _of_communication(context: Context, spans: Spans, world_size: int) -> Iterator[str]:
    trace = context.trace
    comm = one_of(spans.kind, _COMM_KINDS)
    called = len(context.comm_ops.rows)
    on_device = bool((trace.events.cat == Cat.KERNEL).any())
    if called and not comm.any() and world_size == 1:
        yield "one rank: its collectives have nobody to wait for and run no kernel"
    elif called and not comm.any() and (on_device or not trace.unread_device):
        # Where it ran in events that are not read, these were named.
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
    if not context.has_labels and not by_order.any() and (comm.any() or called > 0):
        yield (
            "no FSDP:: labels: collectives are not attributed to FSDP2 units. Traces "
            "of fully_shard models have them where torch.profiler records CPU activity"
        )
    if any(is_graph_launch(name) for name in trace.names):
        yield (
            f"{_graphs(trace)} graphs were launched: their kernels share one launch, "
            "so labels and issue times inside graphs are not known"
        )
    yield from _of_order(context, spans)
    unlabelled = (spans.lane == Lane.OTHER_COMM) & context.has_labels
    if unlabelled.any():
        yield (
            f"{count(int(unlabelled.sum()), 'collective')} were launched outside "
            "FSDP2: shown as other communication"
        )


def _graphs(trace: TraceFile) -> str:
    return "HIP" if any(name.startswith("hipGraph") for name in trace.names) else "CUDA"


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
