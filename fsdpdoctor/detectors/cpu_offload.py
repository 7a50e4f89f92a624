"""FD304: parameters live on the host, and the step pays for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import CannotTell, detector, level
from fsdpdoctor.detectors.judged_stalls import exposed
from fsdpdoctor.detectors.judged_steps import all_units, few_steps, on_cpu, steady
from fsdpdoctor.finding import Advice, Confidence, Finding
from fsdpdoctor.quantities import count, ms, of_step, size
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind

# `docs/detectors.md` D19.
OPTIMIZER_SHARE, COPY_SHARE = 0.30, 0.10
MIN_THREADS = 4

# Parameter, gradient and two Adam states of a shard, back on the device.
COPIES = 4


@detector(
    "FD304", "cpu-offload", needs={Evidence.STEPS, Evidence.UNITS, Evidence.CONFIG}
)
def cpu_offload(m: Measures) -> Iterator[Finding]:
    """Parameters are offloaded to the host, and the step waits for that.

    *Why it costs*: every gather first copies its shard to the device, every
    gradient is copied back, and the optimizer runs on the host's few cores. From
    pageable memory the copies block.

    *What to try*: no offload where the device has room; `pin_memory=True`; a fused
    CPU optimizer; more threads per rank; fewer and longer micro-batches per step.

    What a gather from pageable memory waits for its host counts as its copy.

    *When it is wrong*: a model that does not fit otherwise needs it. The memory
    that going without would take is given.
    """
    specs = all_units(m)
    offloaded = [fqn for fqn, spec in specs.items() if spec.offload]
    if not offloaded:
        return
    if on_cpu(m):
        raise CannotTell("on CPU there is no device to offload from", Evidence.CONFIG)
    step_ns = steady(m)
    parts = m.budget_ns_per_step()
    optimizer_ns, copy_ns = parts["optimizer"], parts["memcpy"]
    pageable = [fqn for fqn in offloaded if specs[fqn].offload == "cpu"]
    threads = _threads(m)
    late = exposed(m).of(Kind.ALL_GATHER).named(*pageable)
    late_ns = late.mean(late.rows.host_late) if m.stalls_known else 0
    slow = (
        optimizer_ns / step_ns >= OPTIMIZER_SHARE
        or (copy_ns + late_ns) / step_ns >= COPY_SHARE
    )
    if not slow and not pageable and threads >= MIN_THREADS:
        return
    cost_ns = optimizer_ns + copy_ns + late_ns
    behind = f", gathers come {ms(late_ns)} late behind copies from pageable memory"
    needed = COPIES * sum(max(specs[fqn].shard_bytes, 0) for fqn in offloaded)
    yield Finding(
        severity=level(cost_ns / step_ns, COPY_SHARE),
        confidence=Confidence.MEDIUM if few_steps(m) else Confidence.HIGH,
        summary=f"{count(len(offloaded), 'unit')} offloaded to the host: the optimizer "
        f"takes {ms(optimizer_ns)} and copies {ms(copy_ns)} per step"
        f"{behind if late_ns else ''} ({of_step(cost_ns / step_ns)}); without it each "
        f"rank needs {size(needed)} more",
        units=tuple(offloaded),
        cost_ns_per_step=cost_ns,
        cost_bytes=needed,
        evidence={
            "optimizer_ns": optimizer_ns,
            "copies_ns": copy_ns,
            "late_gathers_ns": late_ns,
            "pageable_units": len(pageable),
            "threads_per_rank": None if threads == UNKNOWN_THREADS else threads,
            "peak_share_of_device": _peak(m),
        },
        advice=_advice(pageable, needed),
    )


UNKNOWN_THREADS = 1 << 20
"""More than any host has: not said, so not judged."""


def _threads(m: Measures) -> int:
    """The fewest threads of any rank."""
    told = [
        int(text)
        for rank in m.ranks
        if (text := rank.header.environment.get("OMP_NUM_THREADS", "")).isdecimal()
    ]
    return min(told, default=UNKNOWN_THREADS)


def _peak(m: Measures) -> float | None:
    """The largest peak as a share of its device."""
    shares = [
        float(np.max(rank.steps.peak_allocated_bytes)) / rank.header.device_bytes
        for rank in m.ranks
        if rank.header.device_bytes != UNKNOWN and len(rank.steps)
    ]
    return round(max(shares), 4) if shares else None


def _advice(pageable: list[str], needed: int) -> tuple[Advice, ...]:
    drop = Advice(
        text="Leave offload_policy out where the device has room.",
        memory_cost_bytes=needed,
    )
    if not pageable:
        return (drop,)
    pin = Advice(
        text="Pin the host's memory, so that copies do not block.",
        code="\n".join(
            [
                "from torch.distributed.fsdp import CPUOffloadPolicy",
                "",
                "offload = CPUOffloadPolicy(pin_memory=True)",
                "# Then fully_shard(module, offload_policy=offload) for every unit.",
            ]
        ),
        memory_cost_bytes=0,
    )
    return (pin, drop)
