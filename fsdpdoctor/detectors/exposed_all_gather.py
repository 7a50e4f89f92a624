"""FD101: compute stood still while parameters were gathered."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import by_model
from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.detectors.base import STALLS_KNOWN, detector, level
from fsdpdoctor.detectors.judged_stalls import Exposed, exposed, named_together
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
    early_unshard,
    host_overlap,
    keep_unsharded,
    prefetch,
    present,
)
from fsdpdoctor.detectors.unit_order import orders
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity, Value
from fsdpdoctor.quantities import count, ms, of_step
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind, Phase

# `docs/detectors.md` D01, public reports: under 5 % of the step a fix was not worth
# its memory, at 15 % and more it was the first thing to change.
WARNING_SHARE, CRITICAL_SHARE = 0.05, 0.15

# A cause that holds less than a fifth of a phase's exposed time is named in the
# evidence of the others, not as a finding of its own.
MINOR_CAUSE = 0.2

LATE = (
    "Nothing in FSDP2's settings: a rank came late. Where it is the same one step "
    "after step, FD401 names it; else ranks take turns, as on a busy machine."
)
"""A code that is not among the findings must not be promised."""

LARGER = "A larger micro-batch gives each all-gather more compute to hide under."

SMALLER = "A larger micro-batch makes it a smaller part of the step."

UNTOLD = "the bytes were still moving or a rank was late, which cannot be told apart"

WORDS = {
    "host_late": "the host had not issued the all-gather yet",
    "queued": "the all-gather was queued behind other work of its lane",
    "straggler": "a rank arrived late",
    "wire": "the bytes were still moving",
    "tail": "the all-gather was done and its copy-out had not started",
}


@detector("FD101", "exposed-all-gather", needs={Evidence.STEPS}, needs_any=STALLS_KNOWN)
def exposed_all_gather(m: Measures) -> Iterator[Finding]:
    """Compute stood still while a unit's parameters were gathered.

    One finding per model, phase and main cause, its units by cost; passes without
    gradients are left out (FD301). The five causes
    (host late, queued, straggler, wire, tail) add up to the exposed time.

    *Why it costs*: the step is longer by all of it. FSDP2 hides an all-gather under
    the compute of the unit before it; an exposed one was issued too late, waited
    for another collective, or takes longer than that compute.

    *What to try*: prefetch the next unit explicitly; where the all-gather takes
    longer than the compute it could hide under, prefetching cannot hide all of it:
    a larger micro-batch, a narrower dtype, sharding within a node, or keeping units
    gathered between forward and backward can. `fsdpdoctor whatif` prices each.

    *When it is wrong*: a step's first all-gather has nothing to hide under, and is
    reported apart, as information. Time that the host or a late rank caused does
    not raise the severity: FD103 and FD401 judge it. On CPU (gloo) an all-gather
    blocks unless it is issued early and asynchronously, which says little of a GPU.
    From one rank's trace alone a late rank looks like a slow wire.
    """
    step_ns = steady(m)
    gathers = exposed(m).of(Kind.ALL_GATHER)
    body = gathers.body
    if body.ns_per_step / step_ns >= WARNING_SHARE:
        for phase in PHASES:
            yield from _phase(m, body.of(Kind.ALL_GATHER, phase=phase), body, phase)
    first = gathers.edge
    parts = (body.ns_per_step, first.ns_per_step)
    if max(parts) < WARNING_SHARE * step_ns and named_together(m, gathers):
        yield _little(gathers, step_ns)
    if first.ns_per_step / step_ns >= WARNING_SHARE:
        for names in by_model(m, list(first.by_unit())) or [[]]:
            yield _first(m, first.named(*names) if names else first, step_ns)


def _phase(m: Measures, here: Exposed, body: Exposed, phase: int) -> Iterator[Finding]:
    """Findings of one phase, by main cause."""
    causes = {unit: _main_cause(stalls) for unit, stalls in here.apart()}
    main = {unit: causes[unit] for unit in here.by_unit()}
    nameless = here.where(here.rows.unit == UNKNOWN)
    for cause in CAUSES:
        alike = [unit for unit, most in main.items() if most == cause]
        groups = [(here.named(*names), names) for names in by_model(m, alike)]
        if not main and len(nameless.rows) and _main_cause(nameless) == cause:
            # A source without units: the time is known all the same.
            groups = [(nameless, [])]
        total = sum(group.ns_per_step for group, _ in groups)
        if total < max(1, MINOR_CAUSE * body.ns_per_step):
            continue
        for group, names in groups:
            if group.ns_per_step >= MINOR_CAUSE * total:
                yield _finding(m, group, Phase(phase), cause, names)


def _main_cause(stalls: Exposed) -> str:
    """The cause that holds most of some stalls' time."""
    return max(CAUSES, key=lambda cause: int(getattr(stalls.rows, cause).sum()))


def _finding(
    m: Measures, group: Exposed, phase: Phase, cause: str, names: list[str]
) -> Finding:
    step_ns = steady(m)
    cost_ns = group.ns_per_step
    elsewhere = group.mean(group.rows.host_late) + group.late_rank_ns
    because = UNTOLD if cause == "wire" and not group.told else WORDS[cause]
    severity = level(
        (cost_ns - elsewhere) / step_ns,
        WARNING_SHARE,
        None if on_cpu(m) else CRITICAL_SHARE,
    )
    told = Evidence.RANKS in m.evidence and not few_steps(m)
    of_units = f" of {count(len(names), 'unit')}" if names else ""
    return Finding(
        severity=severity,
        confidence=Confidence.HIGH if told else Confidence.MEDIUM,
        summary=f"compute waits {ms(cost_ns)} per step ({of_step(cost_ns / step_ns)}) "
        f"in {PHASES[phase]} for the all-gathers{of_units}, mostly because "
        f"{because}"
        + (" (on CPU an all-gather blocks by default)" if on_cpu(m) else ""),
        units=tuple(names),
        phase=PHASES[phase],
        ranks=group.ranks(),
        cost_ns_per_step=cost_ns,
        evidence={
            "share_of_step": round(cost_ns / step_ns, 4),
            "by_cause": group.by_cause(),
            "units": _unit_rows(m, group, phase, names),
        },
        advice=_advice(m, phase, cause, names),
        places=group.places(),
    )


def _unit_rows(
    m: Measures, group: Exposed, phase: Phase, names: list[str]
) -> list[Value]:
    """What each unit's all-gathers took, and what they could have hidden under."""
    specs, ran = all_units(m), orders(m)
    compute = unit_sums(m, "compute_ns", phase)
    costs: dict[str, dict[str, Value]] = {
        unit: {"exposed_ns": mine.ns_per_step, "by_cause": mine.by_cause()}
        for unit, mine in group.apart()
    }
    rows: list[Value] = []
    for name in names:
        size = specs[name].unsharded_bytes
        order = ran.get(specs[name].tree, [])
        hide_under = compute.get(_before(order, name, phase) or "")
        rows.append(
            {
                "unit": name,
                **costs[name],
                "bytes": None if size == UNKNOWN else size,
                "hide_under_ns": None
                if hide_under is None
                else per_step(m, hide_under),
            }
        )
    return rows


def _before(order: list[str], name: str, phase: Phase) -> str | None:
    """The unit whose compute an all-gather could hide under."""
    if name not in order:
        return None
    at = order.index(name) + (-1 if phase == Phase.FORWARD else 1)
    return order[at] if 0 <= at < len(order) else None


def _advice(
    m: Measures, phase: Phase, cause: str, names: list[str]
) -> tuple[Advice, ...]:
    word = PHASES[phase]
    if cause == "straggler":
        return (Advice(text=LATE),)
    first = host_overlap(m, word, names) if on_cpu(m) else prefetch(m, word, names)
    kept = keep_unsharded(m, names) if phase == Phase.BACKWARD else None
    notes: tuple[Advice, ...] = ()
    if phase == Phase.FORWARD and recompute_seen(m):
        notes = (Advice(text=RECOMPUTE_REASON),)
    return (*present(first, kept), *notes, Advice(text=LARGER))


def _little(gathers: Exposed, step_ns: float) -> Finding:
    """Neither the first gather nor the others are much; together they are named."""
    cost_ns = gathers.ns_per_step
    return Finding(
        severity=Severity.INFO,
        confidence=Confidence.HIGH,
        summary=f"compute waits {ms(cost_ns)} per step ({of_step(cost_ns / step_ns)}) "
        f"for all-gathers, {ms(gathers.edge.ns_per_step)} of it for the step's first, "
        "which has nothing to hide under",
        units=tuple(gathers.by_unit()),
        ranks=gathers.ranks(),
        cost_ns_per_step=cost_ns,
        evidence={
            "share_of_step": round(cost_ns / step_ns, 4),
            "by_cause": gathers.by_cause(),
        },
        advice=(Advice(text=LARGER),),
        places=gathers.places(),
    )


def _first(m: Measures, first: Exposed, step_ns: float) -> Finding:
    """The step's first all-gather: healthy, and sometimes worth starting earlier."""
    cost_ns = first.ns_per_step
    return Finding(
        severity=Severity.INFO,
        confidence=Confidence.HIGH,
        summary=f"the step's first all-gather takes {ms(cost_ns)} "
        f"({of_step(cost_ns / step_ns)}) and has nothing to hide under",
        units=tuple(first.by_unit()),
        phase="forward",
        ranks=first.ranks(),
        cost_ns_per_step=cost_ns,
        evidence={
            "share_of_step": round(cost_ns / step_ns, 4),
            "by_cause": first.by_cause(),
            "first_of_step": True,
        },
        advice=(Advice(text=SMALLER),)
        if on_cpu(m)
        else present(early_unshard(m, first.by_unit())),
        places=first.places(),
    )
