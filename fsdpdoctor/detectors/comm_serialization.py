"""FD106: all-gathers and reductions took turns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.stall_causes import held_back, queued_behind
from fsdpdoctor.detectors.base import STALLS_KNOWN, CannotTell, detector, level
from fsdpdoctor.detectors.before_a_gpu import (
    CONNECTIONS,
    UNSET,
    one_queue,
    shard_ranks,
    without_gpu,
)
from fsdpdoctor.detectors.judged_steps import (
    few_steps,
    on_cpu,
    per_step,
    place_of,
    steady,
)
from fsdpdoctor.detectors.remedies import present, separate_reduce_group
from fsdpdoctor.finding import Advice, Confidence, Finding, Location, Severity
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.quantities import ms, of_step
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind

# Below this share of the step a communicator's memory is not worth it; to be
# calibrated on the gallery. PyTorch asks for proven wins (`docs/detectors.md` G01).
WARNING_SHARE = 0.03


@detector(
    "FD106",
    "comm-serialization",
    needs={Evidence.STEPS, Evidence.ISSUE_TIMES, Evidence.COLLECTIVES},
    needs_any=STALLS_KNOWN,
)
def comm_serialization(m: Measures) -> Iterator[Finding]:
    """An all-gather waited for a reduce-scatter, or the reverse, on one communicator.

    *Why it costs*: FSDP2 issues both on streams of their own, but through one
    communicator, which runs one collective at a time. In backward the next unit's
    all-gather then queues behind the previous unit's reduce-scatter.
    `CUDA_DEVICE_MAX_CONNECTIONS=1` makes all streams take turns.

    *What to try*: a communicator of its own for the reduce-scatter; unset the
    variable, or raise it to 16 or 32, before the process starts.

    *When it is wrong*: tensor parallelism sometimes needs the variable. Where the
    link is full, two communicators share it and win little. In a trace a kernel that
    stands still within its unit's pass, launched and with nothing to wait for, while
    another unit's collective runs, is what one queue looks like; a wait of the script's
    own on the device looks alike. On CPU nothing runs
    beside the host: what the variable will do on a GPU is said as information.
    """
    without = without_gpu(m)
    predicted = [*one_queue(m)] if without else []
    yield from predicted
    if on_cpu(m):
        if predicted:
            return
        raise CannotTell(
            "on CPU no collective runs beside another", Evidence.ISSUE_TIMES
        )
    step_ns = steady(m)
    if not without:
        yield from _environment(m)
    yield from _held_up(m, step_ns)
    total, units, places = 0, dict[str, int](), list[Location]()
    for rank in m.ranks:
        judged = rank.in_judged(rank.stalls.step)
        stalls, cost = rank.stalls.rows(judged), _waited(m, rank)[judged]
        for at in np.flatnonzero(cost):
            name = rank.unit_name(int(stalls.unit[at])) or "an unknown unit"
            units[name] = units.get(name, 0) + int(cost[at])
            total += int(cost[at])
            places.append(place_of(rank, stalls, at))
    cost_ns = per_step(m, total)
    if cost_ns / step_ns < WARNING_SHARE:
        return
    yield Finding(
        severity=level(cost_ns / step_ns, WARNING_SHARE),
        confidence=Confidence.LOW if few_steps(m) else Confidence.MEDIUM,
        summary=f"collectives of one communicator took turns: {ms(cost_ns)} per step "
        f"({of_step(cost_ns / step_ns)}) of waiting for another kind to end",
        units=tuple(sorted(units, key=lambda unit: -units[unit])),
        phase="backward",
        ranks=tuple(sorted({place.rank for place in places})),
        cost_ns_per_step=cost_ns,
        evidence={
            "queued_ns": {
                unit: per_step(m, units[unit])
                for unit in sorted(units, key=lambda unit: -units[unit])
            },
            "kinds": [Kind.ALL_GATHER.key, Kind.REDUCE_SCATTER.key],
        },
        advice=present(separate_reduce_group(m, units)),
        places=tuple(sorted(places, key=lambda p: p.start_ns - p.end_ns)[:3]),
    )


def _waited(m: Measures, rank: RankMeasures) -> Int64s:
    """[stalls]: what each would be shorter by, had its collective not waited for one
    of another kind: the wait itself, and bytes that it would have moved meanwhile.
    """
    causes, stalls, rows = m.causes[rank.rank], rank.stalls, rank.collectives
    behind = queued_behind(rows, stalls)
    other = (behind != UNKNOWN) & (rows.kind[behind] != stalls.kind)
    cost = np.where(other, causes["queued"], 0)
    if Evidence.KERNELS in rank.evidence:  # which begin where their bytes do
        return cost
    held_by, held_ns = (each[stalls.collective] for each in held_back(rows))
    other = (held_by != UNKNOWN) & (rows.kind[held_by] != stalls.kind)
    moved = causes["wire"] + causes["tail"]
    return cost + np.where(other, np.minimum(held_ns, moved), 0)


def _held_up(m: Measures, step_ns: float) -> Iterator[Finding]:
    """Kernels of a trace that waited for nothing, and stood still all the same."""
    total, gaps = 0, list[Location]()
    units: dict[str, int] = {}
    for rank in m.ranks:
        rows = rank.held_up.rows(rank.in_judged(rank.held_up.step))
        total += int(rows.duration_ns.sum())
        for at in range(len(rows)):
            gaps.append(place_of(rank, rows, at))
            name = rank.unit_name(int(rows.by_unit[at])) or "an unknown unit"
            units[name] = units.get(name, 0) + int(rows.duration_ns[at])
    cost_ns = per_step(m, total)
    if cost_ns / step_ns < WARNING_SHARE:
        return
    often = len(gaps) / len(m.step_ns)
    kernels = "kernel" if often == 1 else "kernels"
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=f"within units' passes {often:.3g} {kernels} per step stood still for "
        f"{ms(cost_ns)} ({of_step(cost_ns / step_ns)}) until another unit's collective "
        "began or ended: they had been launched, and the trace shows nothing that they "
        "had to wait for, as where all streams share one hardware queue "
        f"({CONNECTIONS}=1)",
        units=tuple(sorted(units, key=lambda unit: -units[unit])),
        ranks=tuple(sorted({place.rank for place in gaps})),
        cost_ns_per_step=cost_ns,
        evidence={
            "kernels_per_step": round(often, 3),
            "held_ns": {unit: per_step(m, ns) for unit, ns in units.items()},
        },
        advice=(
            Advice(
                text=f"Look whether {CONNECTIONS} is 1 or low where the job starts. "
                + UNSET,
                memory_cost_bytes=0,
            ),
        ),
        places=tuple(sorted(gaps, key=lambda p: p.start_ns - p.end_ns)[:3]),
    )


def _environment(m: Measures) -> Iterator[Finding]:
    """One connection to the device: streams take turns by configuration."""
    ranks = tuple(
        rank.rank
        for rank in m.ranks
        if rank.header.environment.get(CONNECTIONS) == "1"
        and any(shard_ranks(m, spec) > 1 for spec in rank.units)
    )
    if not ranks:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=f"{CONNECTIONS}=1 makes all streams of a device take turns, so that "
        "FSDP2's collectives cannot run under compute",
        ranks=ranks,
        evidence={CONNECTIONS: "1"},
        advice=(
            Advice(
                text=UNSET,
                memory_cost_bytes=0,
            ),
        ),
    )
