"""FD103: the device waited for the host to issue work."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.detectors.base import STALLS_KNOWN, CannotTell, detector, level
from fsdpdoctor.detectors.remedies import (
    RECOMPUTE_REASON,
    prefetch,
    present,
)
from fsdpdoctor.detectors.tables import (
    exposed,
    few_steps,
    on_cpu,
    per_step,
    recompute_seen,
    steady,
    unit_sums,
)
from fsdpdoctor.finding import Advice, Confidence, Finding
from fsdpdoctor.measures import Measures
from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.schema import Evidence

CODE, NAME = "FD103", "host-issue-bound"

# `detectors.md` D02 has 10 % of device idleness; 5 % of exposed all-gather time
# alone, as for FD101, because that part is FSDP2's.
LATE_SHARE, CRITICAL_SHARE = 0.05, 0.15
IDLE_SHARE = 0.10

# D02: FSDP2's hooks take this share of the step on a host that cannot run ahead.
HOOK_SHARE = 0.20


@detector(
    CODE,
    NAME,
    needs={Evidence.STEPS, Evidence.ISSUE_TIMES},
    needs_any=STALLS_KNOWN,
)
def host_issue_bound(m: Measures) -> Iterator[Finding]:
    """The device stood still because the host had not issued its work yet.

    *Why it costs*: overlap needs a host that runs ahead of the device. Where it
    does not, every all-gather is issued at the moment it is needed and is exposed
    whole, however fast the links are.

    *What to try*: explicit prefetch (it issues the next all-gather one unit
    earlier), fewer and larger units, `torch.compile` per block, a fused optimizer,
    no synchronising calls (FD104).

    *When it is wrong*: a profiler with stacks or shapes, or a debugger, slows the
    host and not the device: record again without. On CPU the host is the device and
    cannot be late.
    """
    if on_cpu(m):
        raise CannotTell(
            "on CPU the host computes itself and cannot issue work too late",
            Evidence.ISSUE_TIMES,
        )
    step_ns = steady(m)
    stalls = exposed(m)
    late = stalls.where(stalls.rows.host_late > 0)
    late_ns = late.mean(late.rows.host_late)
    idle_ns = m.budget_ns_per_step().get("host_bound", 0)
    hook_ns = per_step(m, sum(unit_sums(m, "hook_ns").values()))
    if (
        late_ns / step_ns < LATE_SHARE
        and (late_ns + idle_ns) / step_ns < IDLE_SHARE
        and not (hook_ns / step_ns >= HOOK_SHARE and late_ns)
    ):
        return
    cost_ns = late_ns + idle_ns
    hooked = Evidence.HOST in m.evidence
    hooks = f"; FSDP2's hooks take {ms(hook_ns)} there" if hooked else ""
    # A profiler slows the host and not the device, so a trace proves less.
    sure = not few_steps(m) and Evidence.KERNELS not in m.evidence
    yield Finding(
        code=CODE,
        name=NAME,
        severity=level(cost_ns / step_ns, LATE_SHARE, CRITICAL_SHARE),
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        summary=f"the device waits {ms(cost_ns)} per step "
        f"({percent(cost_ns / step_ns)}) for the host{hooks}",
        units=tuple(late.by_unit()),
        ranks=tuple(rank.rank for rank in m.ranks) if idle_ns else late.ranks(),
        cost_ns_per_step=cost_ns,
        evidence={
            "collectives_issued_late_ns": late_ns,
            "kernels_issued_late_ns": idle_ns,
            "hooks_ns": hook_ns if hooked else None,
            "share_of_step": round(cost_ns / step_ns, 4),
        },
        advice=_advice(m),
        places=late.places(),
    )


def _advice(m: Measures) -> tuple[Advice, ...]:
    notes = (Advice(text=RECOMPUTE_REASON),) if recompute_seen(m) else ()
    chains = present(prefetch(m, "forward"), prefetch(m, "backward"))
    lines = ["def compile_blocks(blocks):"]
    lines += ['    """Your repeated blocks, before fully_shard(block)."""']
    lines += ["    for block in blocks:", "        block.compile()"]
    compiled = Advice(
        text="Compile each block before it is sharded: fewer launches per unit.",
        code="\n".join(lines),
    )
    return (*chains, *notes, compiled) if m.units else (compiled,)
