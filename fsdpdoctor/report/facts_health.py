"""What a report says of the run itself: facts, health, the recorder's cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.rank_end_files import Beat
from fsdpdoctor.report.units import all_known, micro_batches
from fsdpdoctor.report.value import (
    Health,
    RecorderCost,
    RunFacts,
    StoppedRank,
    Truncated,
)
from fsdpdoctor.schema import (
    UNKNOWN,
    Evidence,
    Kind,
    Phase,
    RankHeader,
)

NO_COMMUNICATION = (
    "communication not captured: no rank's record holds a collective, so neither "
    "overlap nor exposed time can be told"
)


def run_facts(m: Measures) -> RunFacts:
    """What was run, from the run's header and its first rank's."""
    run = m.run
    header = m.ranks[0].header if m.ranks else None
    model = header.model if header else None
    steps = _numbers(rank.judged_steps for rank in m.ranks)
    hosts = {rank.header.host for rank in m.ranks}
    micro, count = micro_batches(m), len(m.step_ns)
    return RunFacts(
        source=run.source,
        world_size=run.world_size,
        device=run.device,
        torch=run.torch,
        steps=(steps[0], steps[-1]) if steps else None,
        run_id=run.run_id,
        ranks=len(m.ranks),
        hosts=len(hosts) if hosts and None not in hosts else None,
        device_name=header.device_name if header else None,
        python=run.python,
        nccl=run.nccl,
        fsdpdoctor=run.fsdpdoctor or None,
        command=run.command,
        started_unix_ns=run.started_unix_ns or None,
        every=run.every,
        wrapper=model.wrapper if model else None,
        model_class=model.model_class if model else None,
        numel=model.numel if model and model.numel != UNKNOWN else None,
        micro_batches=micro / count if micro is not None and count else None,
        tokens=_mean_known([r.steps.tokens[r.judged] for r in m.ranks]),
        samples=_mean_known([r.steps.samples[r.judged] for r in m.ranks]),
        configuration=_configuration(header) if header else {},
        applied=run.applied,
        notes=run.notes,
    )


def _numbers(parts: Iterable[Int64s]) -> list[int]:
    """All whole numbers of some arrays, once each, ascending."""
    return sorted({int(number) for part in parts for number in part})


def _mean_known(parts: list[Int64s]) -> float | None:
    every = all_known(parts)
    return None if every is None else float(every.mean())


def _configuration(header: RankHeader) -> dict[str, object]:
    """The settings beside the units' own that decide what a run costs."""
    model = header.model
    result: dict[str, object] = dict(header.environment)
    if model is None:
        return result
    result["checkpoint"] = model.checkpoint
    result["autocast"] = model.autocast_dtype
    result["unmanaged_parameters"] = model.unmanaged_params
    result["optimizers"] = [
        f"{o.optimizer_class}(foreach={o.foreach}, fused={o.fused})"
        for o in model.optimizers
    ]
    return result


def health(m: Measures) -> Health:
    """How far the figures can be trusted."""
    judged = _numbers(rank.judged_steps for rank in m.ranks)
    outliers = _numbers(np.array(r.outliers, dtype=np.int64) for r in m.ranks)
    incomplete = _numbers(rank.steps.step[rank.steps.complete == 0] for rank in m.ranks)
    after = _after_training(m)
    # Where ranks could not agree, what one of them judges is in the figures.
    outliers, incomplete = (
        [n for n in numbers if n not in judged] for numbers in (outliers, incomplete)
    )
    incomplete = [n for n in incomplete if n not in after]
    aside = {*judged, *outliers, *incomplete, *after}
    clocks = (clock.residual_ns for clock in m.alignment.clocks.values())
    steps = _numbers(rank.steps.step for rank in m.ranks)
    warm_up = (n for n in steps if n not in aside)
    return Health(
        events=_counted(m.ranks, "events"),
        repaired=_counted(m.ranks, "repaired"),
        dropped=_counted(m.ranks, "dropped"),
        warnings=tuple(_warnings(m)),
        missing_ranks=tuple(sorted(m.missing_ranks)),
        truncated=tuple(
            Truncated(rank=rank.rank, reason=rank.truncated)
            for rank in m.ranks
            if rank.truncated is not None
        ),
        stopped=tuple(_stopped(rank) for rank in m.ranks if _has_stopped(rank)),
        judged_steps=tuple(judged),
        warm_up_steps=tuple(warm_up),
        outlier_steps=tuple(outliers),
        incomplete_steps=tuple(incomplete),
        clock_residual_ns=max((ns for ns in clocks if ns is not None), default=None),
        unsplit_collectives=m.alignment.unsplit,
    )


def _after_training(m: Measures) -> set[int]:
    """What ranks that ended well did after their last step: it is no step that they
    ended in, though they still read data, saved or evaluated.
    """
    return {
        n
        for rank in m.ranks
        if rank.header.ended == "done"
        for n in rank.steps.step[
            (rank.steps.complete == 0) & (rank.steps.micro_batches == UNKNOWN)
        ].tolist()
    }


def _counted(ranks: Sequence[RankMeasures], name: str) -> int | None:
    """A count of the ranks' sources; None where one of them does not keep it."""
    counts = [rank.header.health.get(name) for rank in ranks]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _warnings(m: Measures) -> Iterable[str]:
    """Of the run, then of the ranks; what several ranks say is said once."""
    yield from m.warnings
    if m.run.world_size > 1 and not any(_communicates(rank) for rank in m.ranks):
        yield NO_COMMUNICATION
    said: dict[str, dict[int, None]] = defaultdict(dict)
    for rank in m.ranks:
        for warning in rank.header.warnings:
            said[warning][rank.rank] = None
        if rank.header.ended.startswith("detached"):
            left = f"the recorder left the run early: {rank.header.ended}"
            said[left][rank.rank] = None
        if (lost := _lost_steps(rank)) is not None:
            said[lost][rank.rank] = None
    for warning, ranks in said.items():
        if len(ranks) == len(m.ranks) > 1:
            yield f"every rank: {warning}"
        else:
            yield f"rank {', '.join(map(str, ranks))}: {warning}"


def _lost_steps(rank: RankMeasures) -> str | None:
    """The steps that it ran, by its heartbeat, and could not write any more."""
    if rank.alive or rank.header.ended == "done" or not rank.beats:
        return None
    written = np.concatenate((rank.steps.step, rank.unrecorded.step))
    first = int(written.max(initial=-1)) + 1
    last = rank.beats[-1].step - 1  # the one that it was in is not whole
    if last < first:
        return None
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    if rank.header.ended == "running" and rank.alive is None:
        return f"{steps} ran, not written yet: lost, if it has ended"
    return f"{steps} ran and had not been written when it ended: lost"


def _communicates(rank: RankMeasures) -> bool:
    return len(rank.collectives) > 0 or rank.overlap["all"].communication_ns > 0


def _has_stopped(rank: RankMeasures) -> bool:
    """Whether its record says that it did not end: an import has no such word."""
    ended = rank.header.ended
    if ended == "running":
        return len(rank.beats) > 0
    return ended.startswith(("exception", "signal"))


def _stopped(rank: RankMeasures) -> StoppedRank:
    beat = rank.beats[-1] if rank.beats else None
    if beat is None:
        last = int(rank.steps.step[-1]) if len(rank.steps) else None
        ended = _how_it_ended(rank)
        return StoppedRank(rank=rank.rank, ended=ended, step=last, alive=rank.alive)
    groups = rank.header.groups
    return StoppedRank(
        rank=rank.rank,
        ended=_how_it_ended(rank),
        step=beat.step,
        micro_batch=None if beat.micro_batch == UNKNOWN else beat.micro_batch,
        unit=rank.unit_name(beat.unit),
        phase=_phase_word(beat),
        doing=_kind_word(beat),
        group=groups[beat.group].name if 0 <= beat.group < len(groups) else None,
        seq=None if beat.seq == UNKNOWN else beat.seq,
        alive=rank.alive,
    )


def _how_it_ended(rank: RankMeasures) -> str:
    """A fatal signal leaves no time for the header: CPython's own word tells it."""
    ended = rank.header.ended
    if ended == "running" and rank.fatal is not None:
        return f"signal: {rank.fatal.reason}"
    return ended


def _phase_word(beat: Beat) -> str | None:
    known = {int(phase) for phase in Phase} - {int(Phase.OTHER)}
    return Phase(beat.phase).key if beat.phase in known else None


def _kind_word(beat: Beat) -> str | None:
    known = {int(kind) for kind in Kind}
    if beat.kind not in known:
        return None
    return Kind(beat.kind).label


def recorder_cost(m: Measures) -> RecorderCost:
    """What recording cost, spread over the steps it did not record."""
    recorded = max((len(rank.steps) for rank in m.ranks), default=0)
    ran = max((len(r.steps) + len(r.unrecorded.step) for r in m.ranks), default=0)
    parts = [rank.steps.recorder_ns[rank.judged] for rank in m.ranks]
    cost = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    if not cost.any() or Evidence.STEPS not in m.evidence:
        return RecorderCost(
            overhead_share=None,
            steps_recorded=recorded,
            steps_ran=ran,
            ns_per_recorded_step=None,
        )
    elapsed = int(m.step_ns.sum())
    for rank in m.ranks:
        others = rank.unrecorded
        later = others.step >= rank.judged_steps.min(initial=np.iinfo(np.int64).max)
        elapsed += int((others.end_ns - others.start_ns)[later].sum())
    return RecorderCost(
        overhead_share=int(cost.sum()) / elapsed if elapsed else None,
        steps_recorded=recorded,
        steps_ran=ran,
        ns_per_recorded_step=round(float(cost.mean())),
    )
