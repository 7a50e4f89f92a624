"""A rank's spans -> marks: what the timeline draws, series by series.

A series is one colour in one row of one rank ("forward" in "compute"). Its marks
are disjoint and ascend, so that the time in any area is a difference of two
prefix sums: exact to the nanosecond at every zoom, and as cheap for a million
spans as for a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.intervals import Int64s, Intervals, complement, union
from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    Kind,
    MemorySamples,
    Spans,
    Table,
    column,
)
from fsdpdoctor_dashboard.data.pieces import innermost, within
from fsdpdoctor_dashboard.data.series import (
    EXPOSED_SERIES,
    INDEX,
    SERIES,
    WAITING,
    Row,
    series_of,
)


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
    recorded: tuple[str, ...] = ()  # units, where the record names them otherwise

    @property
    def in_record(self) -> tuple[str, ...]:
        """Units as the record names them, and so its findings: to look them up by."""
        return self.recorded or self.units

    def unit(self, unit: int | None) -> str | None:
        """What a unit is called, None where the source did not say."""
        return _at(self.units, unit)

    def group(self, group: int | None) -> str | None:
        """A process group's name."""
        return _at(self.groups, group)

    def name(self, name: int | None) -> str | None:
        """The string behind a name id."""
        return _at(self.names, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What the analysis says of one rank as a whole."""

    exposed_share: float | None = None  # of its judged steps, where it was measured
    typical_step: int | None = None  # the judged one of the middle length
    ended: str = "running"  # as its header says


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
    facts: RankFacts = field(default_factory=RankFacts)


class Marks(NamedTuple):
    """The marks of one series of one rank, disjoint and ascending."""

    start_ns: Int64s  # [M]
    end_ns: Int64s  # [M]
    span: npt.NDArray[np.int32]  # [M] row in the rank's spans; in its stalls where
    # the series is an exposed one; a step's number where it is "step"
    unit: npt.NDArray[np.int32]  # [M]
    starts_ns: Int64s  # [C] when each of the spans behind the marks began


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
        found[INDEX["step"]] = _step_marks(track.steps)
    return found


def _window_series(
    unit: npt.NDArray[np.int32], roots: frozenset[int]
) -> npt.NDArray[np.int8]:
    even, odd = INDEX["unit unsharded"], INDEX["next unit unsharded"]
    series = np.where(unit % 2 == 0, even, odd)
    root = INDEX["root unsharded"]
    return np.where(np.isin(unit, sorted(roots)), root, series).astype(np.int8)


def _compute_marks(track: Track, series: npt.NDArray[np.int8]) -> dict[int, Marks]:
    """The compute row: waiting is cut out of the work around it."""
    rows = np.array([spec.row for spec in SERIES])
    work = (series >= 0) & (rows[series] == Row.COMPUTE)
    own = series.copy()
    if not track.traced:
        # A micro-batch is the model's time that no unit claims: the loss, the glue.
        batches = track.spans.kind == Kind.MICRO_BATCH
        own[batches] = INDEX["other compute"]
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
        pieces = within(pieces, complement(without, first, last))
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
