"""What each unit did in a step: own compute, copies, counts against the expected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    one_of,
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


def expected_all_gathers(line: Timeline) -> dict[tuple[int, int], int]:
    """All-gathers that a step's policy asks for, by (unit, phase).

    Per pass of the unit's root: forward 1, or 0 where the unit was still unsharded
    when the pass began; backward 1 if it resharded after forward, else 0. Absent
    where the policy, or the units' calls, are not known.
    """
    if not {Evidence.CONFIG, Evidence.WINDOWS} <= line.data.evidence:
        return {}
    result: dict[tuple[int, int], int] = defaultdict(int)
    calls = line.of(Kind.FORWARD, Kind.BACKWARD)
    calls = calls.rows(calls.flags & (Flag.NO_GRAD | Flag.RECOMPUTE) == 0)
    windows = line.of(Kind.UNSHARDED)
    units = line.data.header.units
    for micro_batch in sorted(set(calls.micro_batch.tolist())):
        here = calls.rows(calls.micro_batch == micro_batch)
        starts: dict[int, list[int]] = {}  # of the passes of a tree
        for unit in sorted(set(here.unit.tolist()) - {UNKNOWN}):
            spec = units[unit]
            if spec.tree not in starts:
                starts[spec.tree] = _pass_starts(line, here, spec.tree, micro_batch)
            boundaries = starts[spec.tree]
            kinds = here.kind[here.unit == unit]
            passes = boundaries[: int((kinds == Kind.FORWARD).sum())]
            own = windows.unit == unit
            begins, ends = windows.start_ns[own], windows.end_ns[own]
            result[unit, Phase.FORWARD] += sum(
                not bool(((begins <= t) & (ends > t)).any()) for t in passes
            )
            backwards = int((kinds == Kind.BACKWARD).sum())
            gathers_again = (
                spec.reshard_after_forward not in (False, None)
                and spec.unshard_in_backward is not False
            )
            if gathers_again and backwards:
                result[unit, Phase.BACKWARD] += min(backwards, len(boundaries))
            elif backwards:
                result[unit, Phase.BACKWARD] += 0
    manual = line.of(Kind.ALL_GATHER)
    manual = manual.rows(manual.flags & Flag.MANUAL != 0)
    for unit, phase in zip(manual.unit, manual.phase, strict=True):
        # What the user's own unshard() asks for is expected.
        if (int(unit), int(phase)) in result:
            result[int(unit), int(phase)] += 1
    return _of_one_rank(line, result)


def _of_one_rank(
    line: Timeline, expected: dict[tuple[int, int], int]
) -> dict[tuple[int, int], int]:
    """A unit whose shards are of one rank asks for no collective; older torch issues
    it all the same, and then no more than the policy says.
    """
    header = line.data.header
    gathers = line.of(Kind.ALL_GATHER)
    for unit, phase in expected:
        group = header.units[unit].shard_group
        if 0 <= group < len(header.groups) and header.groups[group].size == 1:
            issued = (gathers.unit == unit) & (gathers.phase == phase)
            asked = min(expected[unit, phase], int(issued.sum()))
            expected[unit, phase] = asked
    return dict(expected)


def _pass_starts(
    line: Timeline, calls: Spans, tree: int, micro_batch: int
) -> list[int]:
    """When each forward pass of a tree's root began, within one micro-batch.

    Where the source does not say, the first began with the micro-batch, a later one
    when its predecessor ended: a root's own gather lies between that time and the
    start of its forward.
    """
    units = line.data.header.units
    passes = line.of(Kind.ROOT_FORWARD)
    passes = passes.rows(
        (passes.micro_batch == micro_batch)
        & (passes.flags & Flag.NO_GRAD == 0)
        & (passes.unit != UNKNOWN)
    )
    trees = np.array([spec.tree for spec in units], dtype=np.int64)[passes.unit]
    if (trees == tree).any():
        return sorted(int(t) for t in passes.start_ns[trees == tree])
    roots = [at for at, u in enumerate(units) if u.is_root and u.tree == tree]
    forwards = calls.rows(one_of(calls.unit, roots) & (calls.kind == Kind.FORWARD))
    markers = line.of(Kind.MICRO_BATCH)
    markers = markers.rows(markers.micro_batch == micro_batch)
    if len(markers):
        first = int(markers.start_ns.min())
    elif len(calls):
        first = int(calls.start_ns.min())
    else:
        return []
    ends = np.sort(forwards.end_ns)[:-1] if len(forwards) else np.empty(0)
    return [first, *(int(t) for t in ends)]
