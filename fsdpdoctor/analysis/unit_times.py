"""What each unit did in a step: own compute, copies, counts against the expected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.expected_gathers import expected_all_gathers
from fsdpdoctor.analysis.host_lead import CAUGHT_UP_NS, host_leads_ns
from fsdpdoctor.analysis.timeline import Timeline
from fsdpdoctor.intervals import (
    Int64s,
    covered_ns,
    join,
    union,
)
from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    Evidence,
    Flag,
    Kind,
    MemorySamples,
    Phase,
    Spans,
    Table,
    TimedTable,
    column,
)
from fsdpdoctor.storage.spill import blocks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitTimes(Table):
    """One row per step, unit and phase in which the unit did something."""

    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    phase: npt.NDArray[np.int8] = column("int8", 0)
    calls: npt.NDArray[np.int64] = column("int64", 0)  # forwards or backwards; no
    # evaluation, no recomputation
    recomputes: npt.NDArray[np.int64] = column("int64", 0)
    compute_ns: npt.NDArray[np.int64] = column("int64", 0)  # own: other units',
    # stalls and copies taken out
    recompute_ns: npt.NDArray[np.int64] = column("int64", 0)  # own, in recomputation
    copy_in_ns: npt.NDArray[np.int64] = column("int64", 0)
    copy_out_ns: npt.NDArray[np.int64] = column("int64", 0)
    reduce_copy_in_ns: npt.NDArray[np.int64] = column("int64", 0)
    hook_ns: npt.NDArray[np.int64] = column("int64", 0)  # FSDP2's hooks on the host
    led_calls: npt.NDArray[np.int64] = column("int64", 0)  # with a known host lead
    caught_up_calls: npt.NDArray[np.int64] = column("int64", 0)  # the device ran dry
    caught_up_ns: npt.NDArray[np.int64] = column("int64", 0)  # own compute of those
    unshard_call_ns: npt.NDArray[np.int64] = column("int64", 0)
    all_gathers: npt.NDArray[np.int64] = column("int64", 0)  # in training
    expected_all_gathers: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    reduce_scatters: npt.NDArray[np.int64] = column("int64", 0)
    all_reduces: npt.NDArray[np.int64] = column("int64", 0)
    eval_compute_ns: npt.NDArray[np.int64] = column(
        "int64", 0
    )  # own, without gradients
    eval_all_gathers: npt.NDArray[np.int64] = column("int64", 0)
    peak_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernels(TimedTable):
    """What is read of a trace's kernels here; a step may have a million."""

    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    phase: npt.NDArray[np.int8] = column("int8", 0)
    flags: npt.NDArray[np.int16] = column("int16", 0)


class _Rows:
    """Sums by unit and phase, in the making: each at unit * len(Phase) + phase."""

    def __init__(self, line: Timeline) -> None:
        unit = line.spans.unit
        units = max(len(line.data.header.units), int(unit.max(initial=UNKNOWN)) + 1)
        self._count = units * len(Phase)
        self._seen = np.zeros(self._count, dtype=np.bool_)
        self._columns: dict[str, Int64s] = {}

    def add(
        self, spans: Spans | Kernels, name: str, amount: Int64s | None = None
    ) -> None:
        """Count some spans, or sum an amount of theirs."""
        known = spans.unit != UNKNOWN
        at = spans.unit[known] * np.int64(len(Phase)) + spans.phase[known]
        if not len(at):
            return
        self._seen[at] = True
        amounts = None if amount is None else amount[known]
        # float64 holds whole nanoseconds of up to 104 days exactly.
        sums = np.bincount(at, amounts, self._count).astype(np.int64)
        self._columns[name] = self._columns.get(name, 0) + sums

    def expect(self, all_gathers: dict[tuple[int, int], int]) -> None:
        """How many are expected."""
        column = np.full(self._count, UNKNOWN, dtype=np.int64)
        for (unit, phase), expected in all_gathers.items():
            column[unit * len(Phase) + phase] = expected
            self._seen[unit * len(Phase) + phase] = True
        self._columns["expected_all_gathers"] = column

    def peaks(self, memory: MemorySamples) -> None:
        """The highest that a sample says."""
        column = np.full(self._count, UNKNOWN, dtype=np.int64)
        at = memory.unit * np.int64(len(Phase)) + memory.phase
        known = (memory.unit != UNKNOWN) & (at < self._count)
        np.maximum.at(column, at[known], memory.peak_bytes[known])
        self._columns["peak_bytes"] = column

    def table(self, step: int) -> UnitTimes:
        rows = np.flatnonzero(self._seen)
        unit, phase = np.divmod(rows, len(Phase))
        columns = {name: column[rows] for name, column in self._columns.items()}
        return UnitTimes.build(len(rows), step=step, unit=unit, phase=phase, **columns)


def unit_times(line: Timeline) -> UnitTimes:
    """What each unit did in each phase of one step."""
    rows = _Rows(line)
    for owner, own_ns in own_compute(line):
        no_grad = owner.flags & Flag.NO_GRAD != 0
        rows.add(owner.rows(no_grad), "eval_compute_ns", own_ns[no_grad])
        owner, own_ns = owner.rows(~no_grad), own_ns[~no_grad]
        again = owner.flags & Flag.RECOMPUTE != 0
        rows.add(owner.rows(again), "recompute_ns", own_ns[again])
        rows.add(owner.rows(~again), "compute_ns", own_ns[~again])
        if isinstance(owner, Spans):  # of kernels, launches say it of each
            _host_lead(line, owner, own_ns, rows)
    for kind, name in (
        (Kind.COPY_IN, "copy_in_ns"),
        (Kind.COPY_OUT, "copy_out_ns"),
        (Kind.REDUCE_COPY_IN, "reduce_copy_in_ns"),
        (Kind.HOOK, "hook_ns"),
        (Kind.UNSHARD, "unshard_call_ns"),
    ):
        spans = line.of(kind)
        rows.add(spans, name, spans.duration_ns)
    _count(line, rows)
    rows.expect(expected_all_gathers(line))
    rows.peaks(line.record.memory)
    return rows.table(line.step)


def _count(line: Timeline, rows: _Rows) -> None:
    calls = line.of(Kind.FORWARD, Kind.BACKWARD)
    training = calls.rows(calls.flags & Flag.NO_GRAD == 0)
    again = training.flags & Flag.RECOMPUTE != 0
    rows.add(training.rows(~again), "calls")
    rows.add(training.rows(again), "recomputes")
    gathers = line.of(Kind.ALL_GATHER)
    evaluation = gathers.flags & Flag.NO_GRAD != 0
    rows.add(gathers.rows(~evaluation), "all_gathers")
    rows.add(gathers.rows(evaluation), "eval_all_gathers")
    rows.add(line.of(Kind.REDUCE_SCATTER), "reduce_scatters")
    rows.add(line.of(Kind.ALL_REDUCE), "all_reduces")


def _host_lead(line: Timeline, calls: Spans, own_ns: Int64s, rows: _Rows) -> None:
    leads = host_leads_ns(line, calls)
    known = leads != NO_TIME
    caught_up = known & (leads <= CAUGHT_UP_NS)
    rows.add(calls.rows(known), "led_calls")
    rows.add(calls.rows(caught_up), "caught_up_calls")
    rows.add(calls.rows(caught_up), "caught_up_ns", own_ns[caught_up])


def own_compute(line: Timeline) -> Iterator[tuple[Spans | Kernels, Int64s]]:
    """Spans that did a unit's compute, each with its own nanoseconds of it."""
    if Evidence.KERNELS in line.data.evidence:
        for block in blocks(len(line.spans)):
            spans = line.spans.rows(block)
            which = spans.kind == Kind.KERNEL
            columns = {name: getattr(spans, name)[which] for name in Kernels.columns()}
            kernels = Kernels(**columns)
            yield kernels, kernels.duration_ns
        return
    calls = line.of(Kind.FORWARD, Kind.BACKWARD)
    stalls = line.stalls
    aside = [
        union(stalls.start_ns, stalls.end_ns),
        line.busy(Kind.COPY_OUT, Kind.REDUCE_COPY_IN),
    ]
    if line.data.header.clock == "host":
        # One thread: the hooks and copies of other units lie inside a parent's span.
        aside.append(line.busy(Kind.COPY_IN, Kind.HOOK, Kind.UNSHARD, Kind.REDUCE))
    owned = innermost(calls.start_ns, calls.end_ns)
    excluded = join(*aside)
    taken = covered_ns(owned.start_ns, owned.end_ns, excluded)
    own = np.zeros(len(calls), dtype=np.int64)
    np.add.at(own, owned.span, owned.end_ns - owned.start_ns - taken)
    yield calls, own


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Owned:
    """Stretches of time, each with the span it belongs to."""

    span: npt.NDArray[np.intp]  # [P]
    start_ns: Int64s  # [P]
    end_ns: Int64s  # [P]


def innermost(start_ns: Int64s, end_ns: Int64s) -> Owned:
    """The time in which each of N spans was the one that started last.

    A parent's forward contains its children's; its own time is what is left.
    """
    lasting = np.flatnonzero(end_ns > start_ns).tolist()
    # An end sorts before a start at one time: a span is half-open. Of two that start
    # at once the longer one is the other's parent; of two alike, the first.
    edges = sorted(
        [(int(start_ns[at]), 1, -int(end_ns[at]), at) for at in lasting]
        + [(int(end_ns[at]), 0, 0, at) for at in lasting]
    )
    open_spans: list[int] = []
    pieces: list[tuple[int, int, int]] = []
    since = 0
    for time, starts, _, at in edges:
        if open_spans and time > since:
            pieces.append((open_spans[-1], since, time))
        since = time
        if starts:
            open_spans.append(at)
        else:
            open_spans.remove(at)
    table = np.array(pieces, dtype=np.int64).reshape(-1, 3)
    return Owned(
        span=table[:, 0].astype(np.intp), start_ns=table[:, 1], end_ns=table[:, 2]
    )
