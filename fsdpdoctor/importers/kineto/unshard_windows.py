"""Unshard windows: from the end of a gather's copy-out to the unit's reshard.

FSDP2 reshards without a label after forward, and with one after backward. So a window
ends with the last `post_backward_reshard` before the unit's next gather, or with its
last `post_forward` where only a reshard after forward explains that it was gathered
again. On a device parameters are held until the work that was launched before is done.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.importers.fsdp2.label_tree import LabelSpan, LabelTree
from fsdpdoctor.importers.fsdp2.operations import HOOKS, Operation
from fsdpdoctor.importers.kineto.attribution import (
    Context,
    SpansWithHostTime,
    rows_that,
)
from fsdpdoctor.importers.kineto.launch_windows import done_by, on_compute_lane
from fsdpdoctor.importers.reader.trace_file import Int64s
from fsdpdoctor.schema import NO_TIME, Flag, Hook, Kind, Lane, Spans

FREES = (Hook.POST_FORWARD, Hook.POST_BACKWARD_RESHARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One unshard and when the host freed it."""

    operation: Operation
    freed_ns: int
    used: bool


def find_windows(context: Context) -> list[Window] | None:
    """The windows of a trace by unit and time; None where labels do not show them all.

    They do where every pass of every unit lies in a window. A unit that is not
    resharded after backward, or was gathered before the capture, has passes outside.
    """
    tree = context.tree
    by_op = context.operations.by_op
    unshards = _by_unit(tree, Hook.ALL_GATHER)
    hooks, frees = _by_unit(tree, *HOOKS), _by_unit(tree, *FREES)
    callbacks = [tree.spans[i] for i in tree.of(Hook.ROOT_POST_BACKWARD_CALLBACK)]
    found: list[Window] = []
    for unit in range(len(tree.units)):
        mine = _of_unit(
            [by_op[i] for i in unshards.get(unit, [])],
            [tree.spans[i] for i in hooks.get(unit, [])],
            [tree.spans[i] for i in frees.get(unit, [])],
            callbacks,
        )
        if not _hold(mine, [tree.spans[i].end_ns for i in hooks.get(unit, [])]):
            return None
        found += mine
    return found


def _hold(windows: list[Window], times_ns: list[int]) -> bool:
    """Whether a unit was unsharded, or about to be, at each of some moments."""
    starts = [window.operation.span.start_ns for window in windows]  # they ascend
    latest = list(itertools.accumulate((w.freed_ns for w in windows), max))
    before = [(time_ns, bisect_left(starts, time_ns)) for time_ns in times_ns]
    return all(at and time_ns <= latest[at - 1] for time_ns, at in before)


def _by_unit(tree: LabelTree, *labels: Hook) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for index in tree.of(*labels):
        found.setdefault(tree.spans[index].unit, []).append(index)
    return found


def _of_unit(
    unshards: list[Operation],
    hooks: list[LabelSpan],
    frees: list[LabelSpan],
    callbacks: list[LabelSpan],
) -> list[Window]:
    found: list[Window] = []
    hooked, freed, dropped = _ByTime(hooks), _ByTime(frees), _ByTime(callbacks)
    for at, operation in enumerate(unshards):
        issued = operation.span.start_ns
        again = unshards[at + 1].span.start_ns if at + 1 < len(unshards) else None
        used = bool(hooked.between(issued, again))
        ends = (freed if used else dropped).between(issued, again)
        if used and again is None:
            ends = [one for one in ends if one.label != Hook.POST_FORWARD]
        if ends:
            # An unused gather is waited for and dropped by the first callback.
            last = ends[-1] if used else ends[0]
            window = Window(operation=operation, freed_ns=last.end_ns, used=used)
            found.append(window)
    return found


class _ByTime:
    """Some labels, by start, of which a few are asked for at a time."""

    def __init__(self, labels: list[LabelSpan]) -> None:
        self._labels = labels
        self._starts = [one.start_ns for one in labels]
        # Of a label and all before it: those that end too early stand before one place.
        self._latest = list(itertools.accumulate((o.end_ns for o in labels), max))

    def between(self, start_ns: int, end_ns: int | None) -> list[LabelSpan]:
        """Those that end after one moment and begin before another."""
        first = bisect_right(self._latest, start_ns)
        end = len(self._starts) if end_ns is None else bisect_left(self._starts, end_ns)
        return [one for one in self._labels[first:end] if one.end_ns > start_ns]


def windows_on_host(
    windows: list[Window], work: SpansWithHostTime
) -> SpansWithHostTime:
    """Where the host is the compute lane: as it made and freed them."""
    ends = np.array([window.freed_ns for window in windows], dtype=np.int64)
    return _placed(windows, work.spans, ends)


def windows_on_device(
    windows: list[Window], work: SpansWithHostTime
) -> SpansWithHostTime:
    """Until all that was launched before the reshard is done."""
    spans = work.spans
    freed = np.array([window.freed_ns for window in windows], dtype=np.int64)
    # What was launched at the very moment counts, too; at the last one, all.
    moments = np.append(freed + 1, np.iinfo(np.int64).max)
    done = done_by(on_compute_lane(spans, spans.issued_ns), moments)
    return _placed(windows, spans, freed if done[-1] == NO_TIME else done[:-1])


def _placed(windows: list[Window], spans: Spans, end_ns: Int64s) -> SpansWithHostTime:
    """Windows from their copy-out, or their gather where nothing copied out."""
    gathers = rows_that(spans, lambda one: one.kind == Kind.ALL_GATHER)
    copies = rows_that(spans, lambda one: one.kind == Kind.COPY_OUT)
    usable = _last_ends(gathers) | _last_ends(copies)
    sizes = dict(zip(gathers.op.tolist(), gathers.bytes.tolist(), strict=True))
    known = [i for i, one in enumerate(windows) if one.operation.op in usable]
    kept = [windows[i].operation for i in known]
    starts = np.array([usable[one.op] for one in kept], dtype=np.int64)
    host_ns = np.array([one.span.start_ns for one in kept], dtype=np.int64)
    order = np.argsort(starts, kind="stable")
    unused = [Flag.NONE if windows[i].used else Flag.NEVER_USED for i in known]
    made = Spans.build(
        len(kept),
        kind=Kind.UNSHARDED,
        lane=Lane.UNSHARDED,
        phase=[one.phase for one in kept],
        flags=[one.flags | flag for one, flag in zip(kept, unused, strict=True)],
        micro_batch=[one.micro_batch for one in kept],
        unit=[one.unit for one in kept],
        by_unit=[one.by_unit for one in kept],
        op=[one.op for one in kept],
        start_ns=starts,
        end_ns=np.maximum(starts, end_ns[known]),
        bytes=[sizes[one.op] for one in kept],
    )
    return SpansWithHostTime(spans=made.rows(order), host_ns=host_ns[order])


def _last_ends(spans: Spans) -> dict[int, int]:
    """For each op the end of its last span."""
    order = np.argsort(spans.end_ns, kind="stable")
    return dict(
        zip(spans.op[order].tolist(), spans.end_ns[order].tolist(), strict=True)
    )
