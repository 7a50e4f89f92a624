"""Cuts a trace's spans into steps."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.context import Placed
from fsdpdoctor.importers.kernels import flags_by_name, is_launch
from fsdpdoctor.importers.passes import annotation_rows, optimizer_windows
from fsdpdoctor.importers.trace_events import Cat, Int64s, TraceFile
from fsdpdoctor.schema import UNKNOWN, Flag, Kind, Lane, Spans, StepRecord

MAX_GAP_NS = 1_000_000
"""Between two marks of profiler.step() lie microseconds; more than a millisecond is
time outside every step."""

_STEP_NAME = re.compile(r"ProfilerStep#(\d{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """A whole step on the host."""

    step: int
    start_ns: int
    end_ns: int


def step_windows(trace: TraceFile) -> list[StepWindow]:
    """The steps of a trace: profiler.step()'s marks, else from optimizer to optimizer.

    Windows do not overlap. A capture that ends inside a step leaves it out.
    """
    events = trace.events
    found: list[StepWindow] = []
    for row in annotation_rows(trace, "ProfilerStep#").tolist():
        match = _STEP_NAME.fullmatch(trace.names[int(events.name[row])])
        start, end = int(events.start_ns[row]), int(events.end_ns[row])
        if match and end > start and (not found or start >= found[-1].end_ns):
            found.append(StepWindow(step=int(match[1]), start_ns=start, end_ns=end))
    if found:
        return found
    ends = [end for _, end in _optimizer_steps(trace)]
    return [
        StepWindow(step=i, start_ns=start, end_ns=end)
        for i, (start, end) in enumerate(itertools.pairwise(ends))
    ]


def _optimizer_steps(trace: TraceFile) -> list[tuple[int, int]]:
    """Optimizer calls; where several optimizers step in turn, one of them."""
    names = {
        trace.names[int(trace.events.name[row])]
        for row in annotation_rows(trace, "Optimizer.step#").tolist()
    }
    return optimizer_windows(trace) if len(names) == 1 else []


def launches_in(trace: TraceFile, windows: Sequence[StepWindow]) -> tuple[int, ...]:
    """How many launches of device work the host made in each window."""
    events = trace.events
    rows = np.flatnonzero(events.cat == Cat.RUNTIME)
    rows = rows[flags_by_name(trace.names, events.name[rows], is_launch)]
    at = windows_at(events.start_ns[rows], windows)
    counts = np.bincount(at[at != UNKNOWN], minlength=len(windows))
    return tuple(int(count) for count in counts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutSpans:
    """Spans by step, and what lies outside every step."""

    steps: tuple[StepRecord, ...]
    outside: Spans


def cut_into_steps(
    parts: Sequence[Placed], windows: Sequence[StepWindow], *, on_device: bool
) -> CutSpans:
    """Give every span to the step in which the host launched or did it.

    Device work that runs on after the host's step belongs to it: a device's step
    begins when the work launched before it is done, or with the host's step if the
    device had nothing left to do.
    """
    starts = np.array([window.start_ns for window in windows], dtype=np.int64)
    bounds = _device_bounds(parts, starts) if on_device else starts
    # Each step's rows are picked from the parts: joined or sorted first, the spans of
    # a large trace would be held once more.
    picked = [_Picked.of(part, windows) for part in parts]
    steps = []
    for i, window in enumerate(windows):
        mine = _numbered(_together([one.rows(i) for one in picked]))
        start = int(bounds[i])
        end = _end_of(mine, windows, bounds, i) if on_device else window.end_ns
        steps.append(
            StepRecord(
                step=window.step,
                start_ns=start,
                end_ns=max(end, start),
                host_start_ns=window.start_ns,
                host_end_ns=window.end_ns,
                micro_batches=_micro_batches(mine),
                spans=mine,
            )
        )
    outside = _together([one.rows(UNKNOWN) for one in picked])
    return CutSpans(steps=tuple(steps), outside=outside)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Picked:
    """Spans and the window of each: which rows are whose."""

    spans: Spans
    order: npt.NDArray[np.intp]  # rows by window
    window: Int64s  # of `order`, UNKNOWN outside every window

    @classmethod
    def of(cls, part: Placed, windows: Sequence[StepWindow]) -> _Picked:
        window = windows_at(part.host_ns, windows)
        order = np.argsort(window, kind="stable")
        return cls(spans=part.spans, order=order, window=window[order])

    def rows(self, window: int) -> Spans:
        first, last = np.searchsorted(self.window, (window, window + 1))
        return self.spans.rows(self.order[first:last])


def windows_at(time_ns: Int64s, windows: Sequence[StepWindow]) -> Int64s:
    """For each of N moments of the host, the index of its window, or UNKNOWN."""
    starts = np.array([window.start_ns for window in windows], dtype=np.int64)
    ends = np.array([window.end_ns for window in windows], dtype=np.int64)
    at = np.searchsorted(starts, time_ns, side="right") - 1
    inside = at >= 0
    inside[inside] &= time_ns[inside] < ends[at[inside]]
    return np.where(inside, at, UNKNOWN)


def _together(parts: list[Spans]) -> Spans:
    """Some spans, by start."""
    spans = Spans.concat(parts)
    return spans.rows(np.argsort(spans.start_ns, kind="stable"))


def _device_bounds(parts: Sequence[Placed], starts: Int64s) -> Int64s:
    """When each step began on the device."""
    compute = [part.spans.lane == Lane.COMPUTE for part in parts]
    pairs = list(zip(parts, compute, strict=True))
    launched = np.concatenate([part.host_ns[rows] for part, rows in pairs])
    ends = np.concatenate([part.spans.end_ns[rows] for part, rows in pairs])
    order = np.argsort(launched, kind="stable")
    busy_until = np.maximum.accumulate(ends[order]) if len(order) else order
    before = np.searchsorted(launched[order], starts, side="left") - 1
    bounds = starts.copy()
    some = before >= 0
    bounds[some] = np.maximum(starts[some], busy_until[before[some]])
    return bounds


def _end_of(mine: Spans, windows: Sequence[StepWindow], bounds: Int64s, i: int) -> int:
    """A step ends where the next begins, if that follows at once; else with its own
    last work on the compute lane, or with the host's step.
    """
    adjacent = i + 1 < len(windows)
    if adjacent and windows[i + 1].start_ns - windows[i].end_ns <= MAX_GAP_NS:
        return int(bounds[i + 1])
    work = mine.end_ns[mine.lane == Lane.COMPUTE]
    return max(int(work.max()) if len(work) else 0, windows[i].end_ns)


def _numbered(spans: Spans) -> Spans:
    """Micro-batches counted within the step, and its first all-gather marked."""
    known = spans.micro_batch != UNKNOWN
    if known.any():
        first = int(spans.micro_batch[known].min())
        micro_batch = np.where(known, spans.micro_batch - first, UNKNOWN)
    else:
        micro_batch = spans.micro_batch
    flags = spans.flags.copy()
    gathers = np.flatnonzero(spans.kind == Kind.ALL_GATHER)
    if len(gathers):
        flags[gathers[0]] |= Flag.FIRST
    columns = {name: getattr(spans, name) for name in Spans.columns()}
    return Spans(**{**columns, "micro_batch": micro_batch, "flags": flags})


def _micro_batches(spans: Spans) -> int:
    count = int((spans.kind == Kind.MICRO_BATCH).sum())
    return count if count else UNKNOWN
