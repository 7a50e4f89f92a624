"""FD103: the device waited for the host to issue work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import STALLS_KNOWN, CannotTell, detector, level
from fsdpdoctor.detectors.judged_stalls import exposed
from fsdpdoctor.detectors.judged_steps import (
    PHASES,
    all_units,
    few_steps,
    on_cpu,
    per_step,
    recompute_seen,
    steady,
    unit_sums,
)
from fsdpdoctor.detectors.remedies import (
    RECOMPUTE_REASON,
    compile_blocks,
    prefetch,
    present,
)
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import ms, of_step
from fsdpdoctor.schema import Evidence

# `docs/detectors.md` D02 has 10 % of device idleness; 5 % of exposed all-gather time
# alone, as for FD101, because that part is FSDP2's.
LATE_SHARE, CRITICAL_SHARE = 0.05, 0.15
IDLE_SHARE = 0.10

# D02: of the gaps, 60 % end at a launch. A record has no gaps inside a unit's pass;
# instead it knows at whose end the device had run out of work.
CAUGHT_UP_SHARE = 0.60

# D02: FSDP2's hooks take this share of the step on a host that cannot run ahead.
HOOK_SHARE = 0.20


@detector(
    "FD103",
    "host-issue-bound",
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

    A recording knows no kernels. There the host is known to be late where the device
    had nothing left to do when a unit's forward or backward ended: that pass took as
    long as the host needed to launch it. How much of it was computed all the same
    only a trace can tell, so no cost is given for it.

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
    cost_ns = late_ns + idle_ns
    dry = _ran_dry(m)
    costs = (
        late_ns / step_ns >= LATE_SHARE
        or cost_ns / step_ns >= IDLE_SHARE
        or (hook_ns / step_ns >= HOOK_SHARE and late_ns > 0)
    )
    if not costs and (dry is None or dry.ns / step_ns < IDLE_SHARE):
        return
    hooked = Evidence.HOST in m.evidence
    said = [*_waits(cost_ns if costs else 0, dry, step_ns)]
    if hooked:
        said.append(f"FSDP2's hooks take {ms(hook_ns)} there")
    # A profiler slows the host and not the device, so a trace proves less.
    sure = costs and not few_steps(m) and Evidence.KERNELS not in m.evidence
    yield Finding(
        severity=level(cost_ns / step_ns, LATE_SHARE, CRITICAL_SHARE)
        if costs
        else Severity.WARNING,
        confidence=Confidence.HIGH if sure else Confidence.MEDIUM,
        summary="; ".join(said),
        units=tuple(late.by_unit()) or (dry.units if dry else ()),
        phase=None if costs or not dry else dry.phase,
        ranks=() if idle_ns or not costs else late.ranks(),
        cost_ns_per_step=cost_ns if costs else None,
        evidence={
            "collectives_issued_late_ns": late_ns,
            "kernels_issued_late_ns": idle_ns,
            "unit_passes": dry.known if dry else None,
            "unit_passes_that_ran_dry": dry.calls if dry else None,
            "at_most_launch_bound_ns": dry.ns if dry else None,
            "hooks_ns": hook_ns if hooked else None,
            "share_of_step": round(cost_ns / step_ns, 4),
        },
        advice=_advice(m),
        places=late.places(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LaunchBound:
    """Passes at whose end the device had run out of work, per judged step and rank."""

    phase: str
    known: int  # of how many passes that is known
    calls: int
    ns: int  # what those passes took beside stalls and copies
    units: tuple[str, ...]  # the most expensive first


def _waits(cost_ns: float, dry: _LaunchBound | None, step_ns: float) -> Iterator[str]:
    if cost_ns:
        share = of_step(cost_ns / step_ns)
        yield f"the device waits {ms(cost_ns)} per step ({share}) for the host"
    if dry:
        share = of_step(dry.ns / step_ns)
        yield (
            f"at the end of {dry.calls} of {dry.known} units' {dry.phase} the device "
            f"had nothing left to do: {ms(dry.ns)} per step ({share}) take as long as "
            "the host needs to launch them"
        )


def _ran_dry(m: Measures) -> _LaunchBound | None:
    """The phase that runs dry at the end of most of its passes, if there is one: a
    host that is late now and then is not what limits the step.
    """
    found = []
    for phase, name in PHASES.items():
        known = sum(unit_sums(m, "led_calls", phase).values())
        calls = sum(unit_sums(m, "caught_up_calls", phase).values())
        ns = unit_sums(m, "caught_up_ns", phase)
        if calls >= CAUGHT_UP_SHARE * known > 0:
            dry = _LaunchBound(
                phase=name,
                known=per_step(m, known),
                calls=per_step(m, calls),
                ns=per_step(m, sum(ns.values())),
                units=tuple(sorted((u for u in ns if ns[u]), key=lambda u: -ns[u])),
            )
            found.append(dry)
    return max(found, key=lambda dry: dry.ns, default=None)


def _advice(m: Measures) -> tuple[Advice, ...]:
    notes = (Advice(text=RECOMPUTE_REASON),) if recompute_seen(m) else ()
    chains = present(prefetch(m, "forward"), prefetch(m, "backward"))
    if any(spec.compiled for spec in all_units(m).values()):
        return (*chains, *notes)
    compiled = compile_blocks(
        "Compile each block before it is sharded: fewer launches per unit."
    )
    return (*chains, *notes, compiled) if m.units else (compiled,)
