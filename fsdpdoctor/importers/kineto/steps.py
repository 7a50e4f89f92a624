"""Cuts a trace's spans into steps."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.fsdp2.passes import annotation_rows, optimizer_windows
from fsdpdoctor.importers.kineto.attribution import SpansWithHostTime
from fsdpdoctor.importers.kineto.kernels import is_launch
from fsdpdoctor.importers.kineto.launch_windows import done_by, on_compute_lane
from fsdpdoctor.importers.reader.trace_file import (
    Cat,
    Int64s,
    RowIds,
    TraceFile,
    names_that,
    rows_named,
)
from fsdpdoctor.schema import UNKNOWN, Flag, Kind, Lane, Spans, StepRecord, distinct
from fsdpdoctor.storage.spill import Shelf, blocks, give_back, let_go, mappings

MAX_GAP_NS = 1_000_000
"""Between two marks of profiler.step() lie microseconds; more than a millisecond is
time outside every step."""

_STEP_NAME = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})\s*")

_OWN_MARK = re.compile(
    r"\W*(?:train(?:ing)?[ _-]*)?(?:step|iter|iteration)[ _#:=-]*(\d{1,18})\W*", re.I
)
"""A range of the script's own around each step, as under Nsight Systems: "step 3"."""

MIN_OWN_MARKS = 3
"""Ranges that follow one another, numbered by ones: fewer may be anything's."""


def is_own_mark(name: str) -> bool:
    """Whether a range's name is a step's number and nothing else."""
    return _OWN_MARK.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """A whole step on the host."""

    step: int
    start_ns: int
    end_ns: int


def step_windows(trace: TraceFile) -> list[StepWindow]:
    """The steps of a trace: profiler.step()'s marks, else from optimizer to optimizer,
    else the script's own numbered ranges.

    Windows do not overlap. A capture that ends inside a step leaves it out.
    """
    if found := _marked(trace, annotation_rows(trace, "ProfilerStep"), _STEP_NAME):
        return found
    ends = [end for _, end in _optimizer_steps(trace)]
    if len(ends) > 1:
        return [
            StepWindow(step=i, start_ns=start, end_ns=end)
            for i, (start, end) in enumerate(itertools.pairwise(ends))
        ]
    own = _marked(trace, _own_marks(trace), _OWN_MARK)
    if len(own) < MIN_OWN_MARKS:
        return []
    in_turn = (b.step - a.step == 1 for a, b in itertools.pairwise(own))
    return own if all(in_turn) else []


def _marked(
    trace: TraceFile, rows: Int64s, pattern: re.Pattern[str]
) -> list[StepWindow]:
    """A window for each of some annotations whose name has a step's number."""
    events = trace.events
    found: list[StepWindow] = []
    for row in rows.tolist():
        match = pattern.fullmatch(trace.names[int(events.name[row])])
        start = int(events.start_ns[row])
        end = start + int(events.duration_ns[row])
        if match and end > start and (not found or start >= found[-1].end_ns):
            found.append(StepWindow(step=int(match[1]), start_ns=start, end_ns=end))
    return found


def _own_marks(trace: TraceFile) -> Int64s:
    """Rows of the script's own numbered ranges, by start."""
    rows = rows_named(trace, (Cat.ANNOTATION,), names_that(trace, is_own_mark))
    order = np.argsort(trace.events.start_ns[rows], kind="stable")
    return rows[order].astype(np.int64)


def _optimizer_steps(trace: TraceFile) -> list[tuple[int, int]]:
    """Optimizer calls; where several optimizers step in turn, one of them."""
    names = {
        trace.names[int(trace.events.name[row])]
        for row in annotation_rows(trace, "Optimizer.step#").tolist()
    }
    return optimizer_windows(trace) if len(names) == 1 else []


def launches_in(trace: TraceFile, windows: Sequence[StepWindow]) -> tuple[int, ...]:
    """How many launches of device work the host made in each window."""
    rows = rows_named(trace, (Cat.RUNTIME,), names_that(trace, is_launch))
    counts = np.zeros(len(windows), dtype=np.int64)
    for block in blocks(len(rows)):
        at = windows_at(trace.events.start_ns[rows[block]], windows)
        counts += np.bincount(at[at != UNKNOWN], minlength=len(windows))
        let_go(trace.events)
    return tuple(counts.tolist())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CutSpans:
    """Spans by step, and what lies outside every step."""

    steps: tuple[StepRecord, ...]
    outside: Spans


def cut_into_steps(
    parts: Sequence[SpansWithHostTime],
    windows: Sequence[StepWindow],
    *,
    on_device: bool,
) -> CutSpans:
    """Give every span to the step in which the host launched or did it.

    Device work that runs on after the host's step belongs to it: a device's step
    begins when the work launched before it is done, or with the host's step if the
    device had nothing left to do.
    """
    starts = np.array([window.start_ns for window in windows], dtype=np.int64)
    bounds = _device_bounds(parts, starts) if on_device else starts
    cut = _cut(parts, windows)
    steps = []
    for i, window in enumerate(windows):
        mine = cut[i]
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
    return CutSpans(steps=tuple(steps), outside=cut[UNKNOWN])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Picked:
    """Spans and the window of each: which rows are whose."""

    spans: Spans
    order: RowIds  # by window
    ends: Int64s  # in `order`, of what lies outside every window and of each window

    @classmethod
    def of(cls, part: SpansWithHostTime, windows: Sequence[StepWindow]) -> _Picked:
        window = np.empty(len(part.spans), dtype=np.int32)
        counts = np.zeros(1 + len(windows), dtype=np.int64)
        for block in blocks(len(window)):
            window[block] = windows_at(part.host_ns[block], windows)
            counts += np.bincount(window[block] + 1, minlength=len(counts))
        order = np.argsort(window, kind="stable").astype(np.int32)
        return cls(spans=part.spans, order=order, ends=np.cumsum(counts))

    def rows(self, window: int) -> RowIds:
        """The rows of a window, or with UNKNOWN of none."""
        first = self.ends[window] if window != UNKNOWN else 0
        return self.order[first : self.ends[window + 1]]


def _cut(
    parts: Sequence[SpansWithHostTime], windows: Sequence[StepWindow]
) -> list[Spans]:
    """The spans of each window, by start, and last those outside every window.

    They are slices of one table, into which each step's rows are picked from the
    parts: joined or sorted first, a large trace's would be held once more.
    """
    picked = [_Picked.of(part, windows) for part in parts]
    mapped = mappings(*(part.spans for part in parts))
    shelf, ends = Shelf(Spans.columns()), [0]
    for window in (*range(len(windows)), UNKNOWN):
        mine = _MergedRows.of([(one.spans, one.rows(window)) for one in picked])
        numbering = _Numbering() if window == UNKNOWN else _numbering(mine, mapped)
        for block in blocks(len(mine.row)):
            rows = mine.rows(block)
            shelf.put((n, numbering.of(n, rows, block)) for n in Spans.columns())
            give_back(mapped)
        ends.append(ends[-1] + len(mine.row))
    spans = Spans(**shelf.take())  # type: ignore[arg-type]
    return [spans.rows(slice(a, b)) for a, b in itertools.pairwise(ends)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _MergedRows:
    """Some rows of several tables, by start."""

    parts: Sequence[Spans]
    part: npt.NDArray[np.int8]  # [N] whose row it is
    row: RowIds  # [N]

    @classmethod
    def of(cls, found: Sequence[tuple[Spans, RowIds]]) -> _MergedRows:
        starts = np.concatenate([spans.start_ns[rows] for spans, rows in found])
        order = np.argsort(starts, kind="stable")
        del starts
        whose = np.arange(len(found), dtype=np.int8)
        return cls(
            parts=[spans for spans, _ in found],
            part=np.repeat(whose, [len(rows) for _, rows in found])[order],
            row=np.concatenate([rows for _, rows in found])[order],
        )

    def rows(self, block: slice) -> _BlockRows:
        """Some of the rows."""
        part, row = self.part[block], self.row[block]
        at = [np.flatnonzero(part == i) for i in range(len(self.parts))]
        return _BlockRows(len(row), self.parts, at, [row[mine] for mine in at])


class _BlockRows(NamedTuple):
    """So many rows at a time, told apart by the table that they are in."""

    length: int
    parts: Sequence[Spans]
    at: Sequence[npt.NDArray[np.intp]]  # of each part: where its rows go
    row: Sequence[RowIds]  # of each part: which they are

    def column(self, name: str) -> npt.NDArray[np.generic]:
        """One column of them."""
        found = np.empty(self.length, dtype=Spans.columns()[name])
        for spans, at, row in zip(self.parts, self.at, self.row, strict=True):
            found[at] = getattr(spans, name)[row]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbering:
    """What a step's spans are counted from: its own first micro-batch and gather."""

    micro_batch: int = 0
    gather: int = UNKNOWN  # row

    def of(self, name: str, rows: _BlockRows, block: slice) -> npt.NDArray[np.generic]:
        """Some rows of a step's column: micro-batches counted within the step, and
        its first all-gather marked.
        """
        column = rows.column(name)
        if name == "micro_batch" and self.micro_batch:
            column[column != UNKNOWN] -= self.micro_batch
        if name == "flags" and block.start <= self.gather < block.stop:
            column[self.gather - block.start] |= Flag.FIRST
        return column


def _numbering(step: _MergedRows, mapped: Sequence[mmap]) -> _Numbering:
    gather, micro_batches = UNKNOWN, []
    for block in blocks(len(step.row)):
        rows = step.rows(block)
        found = rows.column("micro_batch")
        micro_batches += distinct(found[found != UNKNOWN])[:1].tolist()
        gathers = np.flatnonzero(rows.column("kind") == Kind.ALL_GATHER)
        if gather == UNKNOWN and len(gathers):
            gather = block.start + int(gathers[0])
        give_back(mapped)
    return _Numbering(micro_batch=min(micro_batches, default=0), gather=gather)


def windows_at(time_ns: Int64s, windows: Sequence[StepWindow]) -> Int64s:
    """For each of N moments of the host, the index of its window, or UNKNOWN."""
    starts = np.array([window.start_ns for window in windows], dtype=np.int64)
    ends = np.array([window.end_ns for window in windows], dtype=np.int64)
    at = np.searchsorted(starts, time_ns, side="right") - 1
    inside = at >= 0
    inside[inside] &= time_ns[inside] < ends[at[inside]]
    return np.where(inside, at, UNKNOWN)


def _device_bounds(parts: Sequence[SpansWithHostTime], starts: Int64s) -> Int64s:
    """When each step began on the device."""
    work = [on_compute_lane(part.spans, part.host_ns) for part in parts]
    return np.maximum(starts, done_by(itertools.chain(*work), starts))


def _end_of(mine: Spans, windows: Sequence[StepWindow], bounds: Int64s, i: int) -> int:
    """A step ends where the next begins, if that follows at once; else with its own
    last work on the compute lane, or with the host's step.
    """
    adjacent = i + 1 < len(windows)
    if adjacent and windows[i + 1].start_ns - windows[i].end_ns <= MAX_GAP_NS:
        return int(bounds[i + 1])
    work = mine.end_ns[mine.lane == Lane.COMPUTE]
    return max(int(work.max()) if len(work) else 0, windows[i].end_ns)


def _micro_batches(spans: Spans) -> int:
    count = int((spans.kind == Kind.MICRO_BATCH).sum())
    return count if count else UNKNOWN
