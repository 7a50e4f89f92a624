"""A rank's spans -> marks: what the timeline draws, series by series.

A series is one colour in one row of one rank ("forward" in "compute"). Its marks
are disjoint and ascend, so that the time in any area is a difference of two
prefix sums: exact to the nanosecond at every zoom, and as cheap for a million
spans as for a hundred.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.intervals import Int64s, Intervals, complement, union
from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    Kind,
    Lane,
    MemorySamples,
    Phase,
    Spans,
    Table,
    column,
)


class Row(IntEnum):
    """A horizontal line of a rank, in the order of the screen."""

    EXPOSED = 0  # compute stood still for a collective
    COMPUTE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_REDUCE = 4
    OTHER_COMM = 5
    COPIES = 6
    HOST = 7
    UNSHARDED_ROOT = 8
    UNSHARDED_EVEN = 9  # two rows, so that neighbouring units' overlap shows
    UNSHARDED_ODD = 10
    STEP = 11  # the rulers
    MICRO_BATCH = 12


class SeriesSpec(NamedTuple):
    """One colour in one row."""

    row: Row
    name: str  # stands in the area statistics and in the legend
    colour: str  # a key of the palette in format.js


SERIES: tuple[SeriesSpec, ...] = (
    SeriesSpec(Row.EXPOSED, "exposed all-gather", "exposed"),
    SeriesSpec(Row.EXPOSED, "exposed reduce-scatter", "exposed"),
    SeriesSpec(Row.EXPOSED, "exposed all-reduce", "exposed"),
    SeriesSpec(Row.COMPUTE, "forward", "forward"),
    SeriesSpec(Row.COMPUTE, "backward", "backward"),
    SeriesSpec(Row.COMPUTE, "optimizer", "optimizer"),
    SeriesSpec(Row.COMPUTE, "copy-out", "copy_out"),
    SeriesSpec(Row.COMPUTE, "reduce copy-in", "copy_in"),
    SeriesSpec(Row.COMPUTE, "other compute", "kernel"),
    SeriesSpec(Row.ALL_GATHER, "all-gather", "all_gather"),
    SeriesSpec(Row.ALL_GATHER, "all-gather, waiting for a rank", "all_gather_wait"),
    SeriesSpec(Row.REDUCE_SCATTER, "reduce-scatter", "reduce_scatter"),
    SeriesSpec(
        Row.REDUCE_SCATTER, "reduce-scatter, waiting for a rank", "reduce_scatter_wait"
    ),
    SeriesSpec(Row.ALL_REDUCE, "all-reduce", "all_reduce"),
    SeriesSpec(Row.ALL_REDUCE, "all-reduce, waiting for a rank", "all_reduce_wait"),
    SeriesSpec(Row.OTHER_COMM, "other collective", "other_comm"),
    SeriesSpec(Row.COPIES, "copy-in", "copy_in"),
    SeriesSpec(Row.COPIES, "memcpy and memset", "memcpy"),
    SeriesSpec(Row.HOST, "issue", "issue"),
    SeriesSpec(Row.HOST, "hook", "hook"),
    SeriesSpec(Row.HOST, "sync call", "sync"),
    SeriesSpec(Row.HOST, "pause", "pause"),
    SeriesSpec(Row.HOST, "input wait", "input"),
    SeriesSpec(Row.UNSHARDED_ROOT, "root unsharded", "unsharded"),
    SeriesSpec(Row.UNSHARDED_EVEN, "unit unsharded", "unsharded"),
    SeriesSpec(Row.UNSHARDED_ODD, "next unit unsharded", "unsharded"),
    SeriesSpec(Row.STEP, "step", "ruler"),
    SeriesSpec(Row.MICRO_BATCH, "micro-batch", "ruler"),
)

_INDEX = {spec.name: i for i, spec in enumerate(SERIES)}
NO_SERIES = -1

EXPOSED_SERIES = {
    Kind.ALL_GATHER: _INDEX["exposed all-gather"],
    Kind.REDUCE_SCATTER: _INDEX["exposed reduce-scatter"],
    Kind.ALL_REDUCE: _INDEX["exposed all-reduce"],
}
"""By the collective that was waited for."""
WAITING = {
    _INDEX["all-gather"]: _INDEX["all-gather, waiting for a rank"],
    _INDEX["reduce-scatter"]: _INDEX["reduce-scatter, waiting for a rank"],
    _INDEX["all-reduce"]: _INDEX["all-reduce, waiting for a rank"],
}
_BY_KIND = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.OPTIMIZER: "optimizer",
    Kind.CLIP: "optimizer",
    Kind.COPY_OUT: "copy-out",
    Kind.REDUCE_COPY_IN: "reduce copy-in",
    Kind.COPY_IN: "copy-in",
    Kind.MEMCPY: "memcpy and memset",
    Kind.MEMSET: "memcpy and memset",
    Kind.HOOK: "hook",
    Kind.RESHARD: "hook",
    Kind.LAUNCH: "hook",
    Kind.UNSHARD: "issue",
    Kind.REDUCE: "issue",
    Kind.SYNC: "sync call",
    Kind.GC: "pause",
    Kind.CHECKPOINT_SAVE: "pause",
    Kind.CHECKPOINT_LOAD: "pause",
    Kind.INPUT: "input wait",
    Kind.MICRO_BATCH: "micro-batch",
}
_BY_LANE = {
    Lane.ALL_GATHER: "all-gather",
    Lane.REDUCE_SCATTER: "reduce-scatter",
    Lane.ALL_REDUCE: "all-reduce",
    Lane.OTHER_COMM: "other collective",
}
_KERNEL_BY_PHASE = {
    Phase.OTHER: "other compute",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exposed(Table):
    """One row per stall of a rank: the analysis's own, with its causes."""

    start_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    end_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    kind: npt.NDArray[np.int8] = column("int8", 0)  # the collective's
    phase: npt.NDArray[np.int8] = column("int8", 0)
    flags: npt.NDArray[np.int16] = column("int16", 0)
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    span: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # of the collective
    host_late: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    queued: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    straggler: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    wire: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    tail: npt.NDArray[np.int64] = column("int64", UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRows(Table):
    """One row per recorded step of a rank."""

    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    start_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    end_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNames:
    """What the ids of one rank's spans stand for, safe to show."""

    units: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def unit(self, unit: int | None) -> str | None:
        """A unit's FQN, None where the source did not say."""
        return _at(self.units, unit)

    def group(self, group: int | None) -> str | None:
        """A process group's name."""
        return _at(self.groups, group)

    def name(self, name: int | None) -> str | None:
        """The string behind a name id."""
        return _at(self.names, name)


def _at(values: tuple[str, ...], index: int | None) -> str | None:
    if index is None or index == UNKNOWN or not 0 <= index < len(values):
        return None
    return values[index]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Track:
    """One rank as the timeline takes it: times are on the clock all ranks share."""

    rank: int
    spans: Spans
    exposed: Exposed = field(default_factory=lambda: Exposed.build(0))
    steps: StepRows = field(default_factory=lambda: StepRows.build(0))
    memory: MemorySamples = field(default_factory=lambda: MemorySamples.build(0))
    arrived_ns: Int64s | None = None  # [N] when the last rank of a collective arrived
    roots: frozenset[int] = frozenset()  # units that are roots
    traced: bool = False  # kernels are known: a unit's own spans are no work
    names: RankNames = field(default_factory=RankNames)
    exposed_share: float | None = None  # of its judged steps, where it was measured


class Marks(NamedTuple):
    """The marks of one series of one rank, disjoint and ascending."""

    start_ns: Int64s  # [M]
    end_ns: Int64s  # [M]
    span: npt.NDArray[np.int32]  # [M] row in the rank's spans; in its stalls where
    # the series is an exposed one; a step's number where it is "step"
    unit: npt.NDArray[np.int32]  # [M]
    starts_ns: Int64s  # [C] when each of the spans behind the marks began


def series_of(spans: Spans, *, traced: bool) -> npt.NDArray[np.int8]:
    """For each span its index in `SERIES`; waits and unknown kinds have none.

    Compute is what the analysis calls so: of a trace its kernels, of a recorded
    run the model's and the optimizer's own time.
    """
    table = np.full(128, NO_SERIES, dtype=np.int8)
    for kind, name in _BY_KIND.items():
        table[kind] = _INDEX[name]
    if traced:
        for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER, Kind.CLIP):
            table[kind] = NO_SERIES
    series = table[spans.kind]
    for lane, name in _BY_LANE.items():
        series[spans.lane == lane] = _INDEX[name]
    kernels = spans.kind == Kind.KERNEL
    for phase, name in _KERNEL_BY_PHASE.items():
        series[kernels & (spans.phase == phase)] = _INDEX[name]
    return series


def marks_of(track: Track) -> dict[int, Marks]:
    """The marks of a rank by index in `SERIES`; series without any are absent."""
    spans = track.spans
    series = series_of(spans, traced=track.traced)
    windows = spans.kind == Kind.UNSHARDED
    series[windows] = _window_series(spans.unit[windows], track.roots)
    rows = np.array([spec.row for spec in SERIES])
    found: dict[int, Marks] = {}
    for row in np.unique(rows[series[series >= 0]]).tolist():
        here = np.flatnonzero((series >= 0) & (rows[series] == row))
        if row != Row.COMPUTE:
            found |= _row_marks(spans, here, series, None)
    found |= _compute_marks(track, series)
    found |= _exposed_marks(track.exposed)
    if track.arrived_ns is not None:
        found |= _split_waiting(found, track.arrived_ns)
    if len(track.steps):
        found[_INDEX["step"]] = _step_marks(track.steps)
    return found


def _window_series(
    unit: npt.NDArray[np.int32], roots: frozenset[int]
) -> npt.NDArray[np.int8]:
    even, odd = _INDEX["unit unsharded"], _INDEX["next unit unsharded"]
    series = np.where(unit % 2 == 0, even, odd)
    root = _INDEX["root unsharded"]
    return np.where(np.isin(unit, sorted(roots)), root, series).astype(np.int8)


def _compute_marks(track: Track, series: npt.NDArray[np.int8]) -> dict[int, Marks]:
    """The compute row: waiting is cut out of the work around it."""
    rows = np.array([spec.row for spec in SERIES])
    work = (series >= 0) & (rows[series] == Row.COMPUTE)
    own = series.copy()
    if not track.traced:
        # A micro-batch is the model's time that no unit claims: the loss, the glue.
        batches = track.spans.kind == Kind.MICRO_BATCH
        own[batches] = _INDEX["other compute"]
        work |= batches
    waits = union(track.exposed.start_ns, track.exposed.end_ns)
    return _row_marks(track.spans, np.flatnonzero(work), own, waits)


def _row_marks(
    spans: Spans,
    rows: npt.NDArray[np.intp],
    series: npt.NDArray[np.int8],
    without: Intervals | None,
) -> dict[int, Marks]:
    pieces = innermost(spans.start_ns[rows], spans.end_ns[rows])
    if without is not None and len(without) and len(pieces.owner):
        first, last = int(pieces.start_ns[0]), int(pieces.end_ns[-1])
        pieces = _within(pieces, complement(without, first, last))
    owner = rows[pieces.owner]
    found: dict[int, Marks] = {}
    for index in np.unique(series[rows]).tolist():
        mine = series[owner] == index
        span = owner[mine]
        found[index] = Marks(
            start_ns=pieces.start_ns[mine],
            end_ns=pieces.end_ns[mine],
            span=span.astype(np.int32),
            unit=spans.unit[span],
            starts_ns=np.sort(spans.start_ns[rows[series[rows] == index]]),
        )
    return found


def _exposed_marks(exposed: Exposed) -> dict[int, Marks]:
    """Stalls as they are: the analysis made them disjoint."""
    found: dict[int, Marks] = {}
    for kind, index in EXPOSED_SERIES.items():
        rows = np.flatnonzero(exposed.kind == kind)
        if len(rows) == 0:
            continue
        rows = rows[np.argsort(exposed.start_ns[rows], kind="stable")]
        found[index] = Marks(
            start_ns=exposed.start_ns[rows],
            end_ns=exposed.end_ns[rows],
            span=rows.astype(np.int32),
            unit=exposed.unit[rows],
            starts_ns=exposed.start_ns[rows],
        )
    return found


def _split_waiting(found: dict[int, Marks], arrived_ns: Int64s) -> dict[int, Marks]:
    """Cut each collective where the last rank arrived: before it, it only waited."""
    split: dict[int, Marks] = {}
    for wire, waiting in WAITING.items():
        marks = found.get(wire)
        if marks is None:
            continue
        arrived = arrived_ns[marks.span]
        cut = np.where(
            arrived == NO_TIME,
            marks.start_ns,
            np.clip(arrived, marks.start_ns, marks.end_ns),
        )
        late = cut > marks.start_ns
        if not late.any():
            continue
        wired = marks.end_ns > cut
        split[waiting] = Marks(
            start_ns=marks.start_ns[late],
            end_ns=cut[late],
            span=marks.span[late],
            unit=marks.unit[late],
            starts_ns=marks.start_ns[late],
        )
        split[wire] = Marks(
            start_ns=cut[wired],
            end_ns=marks.end_ns[wired],
            span=marks.span[wired],
            unit=marks.unit[wired],
            starts_ns=marks.starts_ns,
        )
    return split


def _step_marks(steps: StepRows) -> Marks:
    pieces = innermost(steps.start_ns, steps.end_ns)
    return Marks(
        start_ns=pieces.start_ns,
        end_ns=pieces.end_ns,
        span=steps.step[pieces.owner].astype(np.int32),
        unit=np.full(len(pieces.owner), UNKNOWN, dtype=np.int32),
        starts_ns=steps.start_ns,
    )


class Pieces(NamedTuple):
    """Disjoint, ascending stretches of time, each with the span that owns it."""

    start_ns: Int64s  # [P]
    end_ns: Int64s  # [P]
    owner: npt.NDArray[np.intp]  # [P]


# Real lanes nest two to five deep. Deeper ones cost one pass per level here, and
# a Python loop over the spans is then the cheaper way.
_DEEPEST = 16


def innermost(start_ns: Int64s, end_ns: Int64s) -> Pieces:
    """Who owns each moment of N spans that may nest or overlap: of those open the
    one that started last. The pieces cover exactly the union of the spans.

    Spans without length own no time and are absent.
    """
    long = np.flatnonzero(end_ns > start_ns)
    order = long[np.lexsort((-end_ns[long], start_ns[long]))]
    start, end = start_ns[order], end_ns[order]
    if len(order) == 0 or (start[1:] >= np.maximum.accumulate(end)[:-1]).all():
        return Pieces(start, end, order)
    depth = np.arange(len(start)) - np.searchsorted(np.sort(end), start, "right")
    levels = [np.flatnonzero(depth == d) for d in range(int(depth.max()) + 1)]
    nested = len(levels) <= _DEEPEST and all(
        (start[level][1:] >= end[level][:-1]).all() for level in levels
    )
    pieces = _by_level(start, end, levels) if nested else _by_sweep(start, end)
    ascending = np.argsort(pieces.start_ns, kind="stable")
    return Pieces(
        pieces.start_ns[ascending],
        pieces.end_ns[ascending],
        order[pieces.owner[ascending]],
    )


def _by_level(start: Int64s, end: Int64s, levels: list[npt.NDArray[np.intp]]) -> Pieces:
    """Nested spans: from the deepest level up, each takes what is still free."""
    taken = np.empty((0, 2), dtype=np.int64)
    lowest, highest = int(start[0]), int(end.max())
    parts: list[Pieces] = []
    for level in reversed(levels):
        free = complement(taken, lowest, highest)
        parts.append(_within(Pieces(start[level], end[level], level), free))
        taken = union(
            np.concatenate((taken[:, 0], start[level])),
            np.concatenate((taken[:, 1], end[level])),
        )
    whole = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    return Pieces(whole[0], whole[1], whole[2])


def _within(pieces: Pieces, free: Intervals) -> Pieces:
    """What lies in `free` of each piece."""
    first = np.searchsorted(free[:, 1], pieces.start_ns, "right")
    last = np.searchsorted(free[:, 0], pieces.end_ns, "left")
    lengths = np.maximum(last - first, 0)
    of_piece = np.repeat(np.arange(len(lengths)), lengths)
    offsets = np.repeat(np.cumsum(lengths) - lengths, lengths)
    of_free = np.repeat(first, lengths) + np.arange(len(of_piece)) - offsets
    return Pieces(
        np.maximum(pieces.start_ns[of_piece], free[of_free, 0]),
        np.minimum(pieces.end_ns[of_piece], free[of_free, 1]),
        pieces.owner[of_piece],
    )


def _by_sweep(start: Int64s, end: Int64s) -> Pieces:
    """Spans that overlap in any way, one by one."""
    starts, ends = start.tolist(), end.tolist()
    waiting: list[int] = []  # a heap of negated rows: the latest start first
    cuts: list[tuple[int, int, int]] = []
    now = starts[0]
    for row, begin in enumerate([*starts, max(ends)]):
        while waiting and now < begin:
            top = -waiting[0]
            if ends[top] <= now:
                heapq.heappop(waiting)
                continue
            until = min(ends[top], begin)
            cuts.append((now, until, top))
            now = until
        now = begin
        heapq.heappush(waiting, -row)
    columns = np.array(cuts, dtype=np.int64).reshape(-1, 3)
    return Pieces(columns[:, 0], columns[:, 1], columns[:, 2].astype(np.intp))
