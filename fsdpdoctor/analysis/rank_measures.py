"""RankMeasures: one rank reduced to small tables, from that rank alone.

So ranks can be measured in as many processes as there are, and no rank's spans need
to outlive its own turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.host_lead import held_up
from fsdpdoctor.analysis.named_gaps import Gaps
from fsdpdoctor.analysis.other_calls import OtherCalls, other_calls
from fsdpdoctor.analysis.overlap import (
    OVERLAP_KINDS,
    Overlap,
    Overlaps,
    overlap_of_capture,
    overlap_under,
)
from fsdpdoctor.analysis.rank_tables import (
    HOST_KINDS,
    CounterRows,
    HeldUp,
    HostEvents,
    Passes,
    Steps,
    Windows,
    under_last_settings,
)
from fsdpdoctor.analysis.step_budget import PARTS, divide
from fsdpdoctor.analysis.timeline import Collectives, Stalls, Timeline, timelines
from fsdpdoctor.analysis.unit_times import UnitTimes, unit_times
from fsdpdoctor.intervals import Int64s, total_ns
from fsdpdoctor.rank_end import GONE, Fatal, Stall
from fsdpdoctor.rank_end_files import Beat
from fsdpdoctor.run import OfRank, RankData
from fsdpdoctor.schema import (
    COMMUNICATION_LANES,
    UNKNOWN,
    Evidence,
    Flag,
    Kind,
    MemorySamples,
    RankHeader,
    StepTimes,
    UnitSpec,
    is_any,
    median,
    one_of,
)
from fsdpdoctor.storage.spill import let_go

WARM_UP_STEPS = 3
"""Lazy initialisation, allocator warm-up and compilation distort the first steps;
every detector's guard in the field skips about three."""

MIN_JUDGED_STEPS = 3
"""Fewer steps than this have no median worth the name; then warm-up is used too."""

OUTLIER = 5
"""A step this many times the median is something else than training (a checkpoint,
an evaluation): it is set aside, and reported."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankMeasures(OfRank):
    """One rank, reduced. Small enough to send between processes."""

    header: RankHeader
    names: tuple[str, ...]
    steps: Steps
    unrecorded: StepTimes
    budget_ns: Mapping[str, Int64s]  # by part of PARTS: [S]; they sum to the step
    collectives: Collectives
    stalls: Stalls  # of training; those of passes without gradients are apart
    no_grad_stalls: Stalls
    no_grad_passes: Passes
    unit_times: UnitTimes
    windows: Windows
    held_up: HeldUp
    host: HostEvents
    counters: CounterRows
    others: OtherCalls
    gaps: Gaps
    memory: MemorySamples
    memory_step: Int64s  # [len(memory)]
    overlaps: Overlaps | Mapping[str, Int64s]
    # of the whole capture, or by step: [S, 2] communicating, and that under compute
    judged: npt.NDArray[np.bool_]  # [S]
    outliers: tuple[int, ...] = ()  # steps set aside, see OUTLIER
    first_forward: tuple[int, ...] = ()  # units in the order they first ran
    beats: tuple[Beat, ...] = ()  # since its last whole step; the last one always
    truncated: str | None = None
    capture: Collectives = field(default_factory=lambda: Collectives.build(0))
    # every collective of a trace that has no whole step
    stall: Stall | None = None
    fatal: Fatal | None = None
    process: str | None = None  # see `RankData`

    @property
    def alive(self) -> bool | None:
        """Whether its process lives; None: not known from here."""
        return None if self.process is None else self.process != GONE

    @property
    def overlap(self) -> Overlaps:
        """Classic overlap by kind, see `Overlap`."""
        return {
            kind: of
            if isinstance(of, Overlap)
            else Overlap(
                communication_ns=int(of[self.judged, 0].sum()),
                overlapped_ns=int(of[self.judged, 1].sum()),
            )
            for kind, of in self.overlaps.items()
        }

    @property
    def units(self) -> tuple[UnitSpec, ...]:
        return self.header.units

    @property
    def judged_steps(self) -> Int64s:
        return self.steps.step[self.judged]

    @property
    def other_collectives(self) -> Collectives:
        """What a device ran of communication beside FSDP2's, whose ends tell clocks as
        theirs do: of the steps, or where there is none of the capture.
        """
        if Evidence.KERNELS not in self.evidence:
            return Collectives.build(0)
        if not len(self.steps):
            return self.capture
        return Collectives.of_rows(self.others, kind=Kind.COLLECTIVE)

    def in_judged(self, step: Int64s) -> npt.NDArray[np.bool_]:
        """Which of some step numbers are judged."""
        return one_of(step, self.judged_steps)


def measure_rank(data: RankData) -> RankMeasures:
    """Reduce one rank to tables per step, unit and collective.

    A step at a time: a trace's are too large to be held together.
    """
    lines = [_measured(line) for line in timelines(data)]
    records = (*data.steps, *(() if data.rest is None else (data.rest,)))
    steps = Steps.concat([line.row for line in lines])
    judged, outliers = _judged(steps, data.header)
    return RankMeasures(
        header=_without_moments(data.header),
        names=data.names,
        steps=steps,
        unrecorded=StepTimes.concat([record.unrecorded for record in records]),
        budget_ns={
            part: np.array([line.budget_ns[part] for line in lines], dtype=np.int64)
            for part in PARTS
        },
        collectives=Collectives.concat([line.collectives for line in lines]),
        stalls=_all_stalls([(line.stalls, len(line.collectives)) for line in lines]),
        no_grad_stalls=_all_stalls(
            [(line.no_grad_stalls, len(line.collectives)) for line in lines]
        ),
        no_grad_passes=Passes.concat([line.no_grad_passes for line in lines]),
        unit_times=UnitTimes.concat([line.unit_times for line in lines]),
        windows=Windows.concat([line.windows for line in lines]),
        held_up=HeldUp.concat([line.held_up for line in lines]),
        host=HostEvents.concat([line.host for line in lines]),
        counters=CounterRows.concat(
            [CounterRows.of_rows(one.counters, step=one.step) for one in records]
        ),
        others=OtherCalls.concat([line.others for line in lines]),
        gaps=Gaps.concat([line.gaps for line in lines]),
        memory=MemorySamples.concat([record.memory for record in data.steps]),
        memory_step=np.concatenate(
            [np.full(len(record.memory), record.step) for record in data.steps]
            or [np.empty(0)]
        ).astype(np.int64),
        overlaps=_overlaps(data, lines),
        judged=judged,
        capture=_capture(data),
        outliers=outliers,
        first_forward=_first_forward(lines),
        beats=_since_last_whole(data.beats, steps),
        truncated=data.truncated,
        stall=data.stall,
        fatal=data.fatal,
        process=data.process,
    )


def _without_moments(header: RankHeader) -> RankHeader:
    """What its own file alone has need to hold: hundreds of moments, of each rank."""
    if header.memory is None:
        return header
    return replace(header, memory=replace(header.memory, moments=()))


def _since_last_whole(beats: tuple[Beat, ...], steps: Steps) -> tuple[Beat, ...]:
    whole = steps.step[steps.complete == 1].max(initial=UNKNOWN)
    return tuple(one for one in beats if one.step > whole) or beats[-1:]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Measured:
    """What is kept of a step's timeline."""

    row: Steps
    budget_ns: Mapping[str, int]
    collectives: Collectives
    stalls: Stalls
    no_grad_stalls: Stalls
    no_grad_passes: Passes
    unit_times: UnitTimes
    windows: Windows
    held_up: HeldUp
    host: HostEvents
    others: OtherCalls
    gaps: Gaps
    overlap: Overlaps | None  # None where it is the capture's that counts
    forward: tuple[int, ...] | None  # units in the order they ran; None: no forward


def _measured(line: Timeline) -> _Measured:
    has_kernels = Evidence.KERNELS in line.data.evidence
    divided = divide(line)
    no_grad = line.stalls.flags & Flag.NO_GRAD != 0
    measured = _Measured(
        row=_step_row(line),
        budget_ns=divided.ns,
        collectives=line.collectives,
        stalls=line.stalls.rows(~no_grad),
        no_grad_stalls=line.stalls.rows(no_grad),
        no_grad_passes=_no_grad_passes(line),
        unit_times=unit_times(line),
        windows=Windows.of_rows(line.of(Kind.UNSHARDED), step=line.step),
        held_up=held_up(line),
        host=HostEvents.of_rows(line.of(*HOST_KINDS), step=line.step),
        others=other_calls(line, divided.others),
        gaps=divided.gaps,
        overlap=None if has_kernels else overlap_under(line.spans, line.compute),
        forward=_forward(line),
    )
    let_go(line.spans)
    return measured


def _step_row(line: Timeline) -> Steps:
    record, memory = line.record, line.record.memory
    return Steps.build(
        1,
        step=record.step,
        start_ns=record.start_ns,
        end_ns=record.end_ns,
        host_start_ns=record.host_start_ns,
        host_end_ns=record.host_end_ns,
        micro_batches=record.micro_batches,
        tokens=record.tokens,
        samples=record.samples,
        recorder_ns=record.recorder_ns,
        complete=int(record.complete),
        compute_ns=total_ns(line.compute),
        peak_allocated_bytes=_largest(memory.peak_bytes),
        peak_reserved_bytes=_largest(memory.reserved_bytes),
        rss_bytes=_last(memory.rss_bytes),
    )


def _largest(values: Int64s) -> int:
    return int(values.max()) if len(values) else UNKNOWN


def _last(values: Int64s) -> int:
    known = values[values != UNKNOWN]
    return int(known[-1]) if len(known) else UNKNOWN


def _judged(
    steps: Steps, header: RankHeader
) -> tuple[npt.NDArray[np.bool_], tuple[int, ...]]:
    """Which steps figures are taken from, and which were set aside as outliers."""
    enough = WARM_UP_STEPS + MIN_JUDGED_STEPS
    judged = under_last_settings(steps, header.settings, enough)
    memory = header.memory
    if memory is not None and memory.refused is None and memory.slowed:
        others = judged & (steps.step != memory.step)
        judged = others if others.sum() >= MIN_JUDGED_STEPS else judged
    for skip in (WARM_UP_STEPS, 1):
        warm = judged & (steps.step >= skip)
        if warm.sum() >= MIN_JUDGED_STEPS:
            judged = warm
            break
    outliers: tuple[int, ...] = ()
    if judged.sum() >= MIN_JUDGED_STEPS:
        limit = OUTLIER * median(steps.duration_ns[judged])
        far = judged & (steps.duration_ns >= limit)
        outliers = tuple(int(s) for s in steps.step[far])
        judged = judged & ~far
    return judged, outliers


def agreed(ranks: Sequence[RankMeasures]) -> Iterator[RankMeasures]:
    """Ranks that judge the same steps: what one sets aside, all do.

    A rank that saves is long in one step, those that wait for it in the next. Where so
    much would be set aside that too few steps were left, as in a job of many ranks of
    which one is always disturbed, it takes half of the ranks.
    """
    ranks = list(_warm(ranks))
    incomplete = Counter(
        n for r in ranks for n in r.steps.step[r.steps.complete == 0].tolist()
    )
    outliers = Counter(n for rank in ranks for n in rank.outliers)
    aside = [*incomplete, *outliers]
    if not _enough_left(ranks, aside):
        half = len(ranks) / 2
        aside = [n for c in (incomplete, outliers) for n in c if c[n] >= half]
    if not _enough_left(ranks, aside):
        yield from ranks
        return
    for rank in ranks:
        could = rank.judged | one_of(rank.steps.step, rank.outliers)
        judged = could & ~one_of(rank.steps.step, aside)
        put = [n for n in outliers if n in aside and n in rank.steps.step]
        yield replace(rank, judged=judged, outliers=tuple(sorted(put)))


def _warm(ranks: Sequence[RankMeasures]) -> Iterator[RankMeasures]:
    """What one rank sets aside as warm-up, all do: a rank that was cut off early has
    too few steps to do so itself, and its cold ones are none of the others' warm ones.
    """
    first = [
        int(rank.judged_steps.min())
        for rank in ranks
        if rank.judged.sum() >= MIN_JUDGED_STEPS
    ]
    warm = min(max(first, default=0), WARM_UP_STEPS)
    for rank in ranks:
        cold = rank.judged & (rank.steps.step < warm)
        yield replace(rank, judged=rank.judged & ~cold) if cold.any() else rank


def _enough_left(ranks: Sequence[RankMeasures], aside: Sequence[int]) -> bool:
    """Whether each rank keeps most of its judged steps, and enough of them to judge, or
    all that it has.
    """
    for rank in ranks:
        left = int((~one_of(rank.judged_steps, aside)).sum())
        had = int(rank.judged.sum())
        if left < had and (left < MIN_JUDGED_STEPS or 2 * left < had):
            return False
    return True


def _all_stalls(steps: Sequence[tuple[Stalls, int]]) -> Stalls:
    """The stalls of all steps, each with its number of collectives: `collective` is
    counted over all steps.
    """
    parts: list[Stalls] = []
    before = 0
    for stalls, collectives in steps:
        parts.append(replace(stalls, collective=stalls.collective + before))
        before += collectives
    return Stalls.concat(parts)


def _no_grad_passes(line: Timeline) -> Passes:
    spans = line.of(Kind.ROOT_FORWARD)
    without = spans.flags & Flag.NO_GRAD != 0
    return Passes.of_rows(spans.rows(without), step=line.step)


def _overlaps(
    data: RankData, lines: Sequence[_Measured]
) -> Overlaps | Mapping[str, Int64s]:
    """Of the capture where there are kernels, else step by step."""
    if Evidence.KERNELS in data.evidence:
        whole = [record.spans for record in data.steps if record.complete]
        if len(whole) == len(data.steps):
            whole.append(data.outside)  # else what it lacks cannot be told
        return overlap_of_capture(whole)
    parts = [line.overlap or {} for line in lines]
    return {
        kind: np.array(
            [
                (part[kind].communication_ns, part[kind].overlapped_ns)
                if kind in part
                else (0, 0)
                for part in parts
            ],
            dtype=np.int64,
        ).reshape(len(parts), 2)
        for kind in OVERLAP_KINDS
    }


def _capture(data: RankData) -> Collectives:
    """All communication of a trace without a whole step."""
    if data.steps or Evidence.KERNELS not in data.evidence:
        return Collectives.build(0)
    spans = data.outside
    return Collectives.of_rows(spans.rows(is_any(spans.lane, *COMMUNICATION_LANES)))


def _forward(line: Timeline) -> tuple[int, ...] | None:
    forward = line.of(Kind.FORWARD)
    plain = forward.rows(forward.flags & Flag.RECOMPUTE == 0)
    if not len(plain):
        return None
    order = plain.unit[np.argsort(plain.start_ns, kind="stable")]
    return tuple(dict.fromkeys(int(u) for u in order if u != UNKNOWN))


def _first_forward(lines: Sequence[_Measured]) -> tuple[int, ...]:
    """Units in the order of their forwards in the last step that has any."""
    orders = (line.forward for line in reversed(lines))
    return next((order for order in orders if order is not None), ())
