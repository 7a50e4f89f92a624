"""FD302: the device allocator is short of memory, or keeps too much of it."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.judged_steps import NO_ROWS, counter_rows, rows_by_step
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count, percent, size
from fsdpdoctor.schema import (
    COUNTER_ALLOC_RETRIES,
    COUNTER_OOMS,
    UNKNOWN,
    Evidence,
    median,
)

# `docs/detectors.md` D20: reserved over allocated at the step's peak.
FRAGMENTED = 1.5

PRESSING_SHARE = 0.5
"""Of the device's memory: what is held and not used presses nobody below it."""

# D20: a leak shows over this many steps; and it must grow by 1 % of the peak over
# them, for counters of the allocator move by single blocks all the time.
LEAK_STEPS, LEAK_SHARE = 20, 0.01


@detector("FD302", "allocator-pressure", needs={Evidence.STEPS, Evidence.ALLOCATOR})
def allocator_pressure(m: Measures) -> Iterator[Finding]:
    """The allocator had to free its cache and retry, or holds far more than is used.

    *Why it costs*: a retry synchronises the device, frees cached blocks and
    allocates again, in the middle of a step, and one rank's retry makes all others
    wait. Memory reserved and not used is one step from running out.

    *What to try*: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; fewer units
    alive (less prefetch, resharding after forward); shorter or equal sequence
    lengths; `share_comm_ctx` where there are several roots.

    *When it is wrong*: the first steps allocate the optimizer's state and are not
    judged. Sequence lengths that vary raise what is reserved by right.
    """
    if not any(len(rank.judged_steps) for rank in m.ranks):
        raise CannotTell("there is no whole step", Evidence.STEPS)
    yield from _retries(m)
    yield from _fragmented(m)
    yield from _growing(m)


def grown(rank: RankMeasures, counter: str) -> int:
    """By how much a counter rose over the judged steps."""
    rows = counter_rows(rank, counter)
    return int(rows.value.max() - rows.value.min()) if len(rows) else 0


def _retries(m: Measures) -> Iterator[Finding]:
    retries = {rank.rank: grown(rank, COUNTER_ALLOC_RETRIES) for rank in m.ranks}
    failures = {rank.rank: grown(rank, COUNTER_OOMS) for rank in m.ranks}
    ranks = tuple(r for r in retries if retries[r] or failures[r])
    if not ranks:
        return
    total = sum(retries.values()) + sum(failures.values())
    yield Finding(
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        summary=f"the allocator ran out and retried {count(total, 'time')} in steady "
        f"steps, on {count(len(ranks), 'rank')}",
        ranks=ranks,
        evidence={
            "retries": {str(r): retries[r] for r in ranks},
            "out_of_memory": {str(r): failures[r] for r in ranks},
        },
        advice=(_expandable(),),
    )


def _expandable() -> Advice:
    return Advice(
        text="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the process "
        "starts.",
        memory_cost_bytes=0,
    )


def _fragmented(m: Measures) -> Iterator[Finding]:
    """Reserved memory far above the peak of what was allocated, and much of it all."""
    worst: dict[int, tuple[int, int]] = {}
    for rank in m.ranks:
        steps = rank.steps.rows(rank.judged)
        known = (steps.peak_allocated_bytes > 0) & (
            steps.peak_reserved_bytes != UNKNOWN
        )
        if known.any():
            used = int(steps.peak_allocated_bytes[known].max())
            reserved = int(steps.peak_reserved_bytes[known].max())
            if reserved >= max(FRAGMENTED * used, PRESSING_SHARE * _device_bytes(rank)):
                worst[rank.rank] = (used, reserved)
    if not worst:
        return
    used, reserved = max(worst.values(), key=lambda pair: pair[1] - pair[0])
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=f"the allocator holds {size(reserved)} for a peak of {size(used)}",
        ranks=tuple(worst),
        cost_bytes=reserved - used,
        evidence={"peak_allocated_bytes": used, "reserved_bytes": reserved},
        advice=(_expandable(),),
    )


def _device_bytes(rank: RankMeasures) -> int:
    """The device's memory; 0 where it is not known."""
    return max(rank.header.device_bytes, 0)


def _growing(m: Measures) -> Iterator[Finding]:
    """The floor of allocated memory rises from step to step."""
    slopes: dict[int, int] = {}
    for rank in m.ranks:
        floors = _floors(rank)
        if len(floors) < LEAK_STEPS:
            continue
        half = len(floors) // 2
        rise = median(floors[half:]) - median(floors[:half])
        peak = float(rank.steps.peak_allocated_bytes.max())
        if rise >= LEAK_SHARE * max(peak, 1.0):
            slopes[rank.rank] = round(rise / half)
    if not slopes:
        return
    worst = max(slopes.values())
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=f"allocated memory grows by {size(worst)} per step, "
        f"{percent(LEAK_SHARE)} of the peak and more over the run",
        ranks=tuple(slopes),
        cost_bytes=worst,
        evidence={"bytes_per_step": {str(r): s for r, s in slopes.items()}},
        advice=(
            Advice(
                text="Look for what is kept from step to step: outputs with their "
                "graph, lists of losses; detach() what is only logged.",
            ),
        ),
    )


def _floors(rank: RankMeasures) -> list[int]:
    """The least allocated bytes of each judged step."""
    floors = []
    by_step = rows_by_step(rank.memory_step)
    for step in rank.judged_steps.tolist():
        values = rank.memory.allocated_bytes[by_step.get(step, NO_ROWS)]
        values = values[values != UNKNOWN]
        if len(values):
            floors.append(int(values.min()))
    return floors
