"""Passes without gradients that gather the same weights again and again (FD301)."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import (
    PURPOSES,
    NoGrad,
    by_model,
    no_grad_passes,
    trained_models,
)
from fsdpdoctor.detectors.gathered_once import gathered_once
from fsdpdoctor.detectors.judged_steps import all_units, per_step, unit_sums
from fsdpdoctor.finding import Confidence, Finding, Severity
from fsdpdoctor.quantities import count, ms, of_step
from fsdpdoctor.schema import Phase, one_of


def gathered_in_vain(
    m: Measures, exposed_share: float, repeated: int
) -> Iterator[Finding]:
    """Passes without gradients gather the same weights again and again, or wait: from
    this share of a step, or this many gathers for each of a training forward, on.
    """
    if not len(m.step_ns):
        return
    evaluation = unit_sums(m, "eval_all_gathers")
    training = unit_sums(m, "all_gathers", Phase.FORWARD)
    trained, passes = trained_models(m), no_grad_passes(m)
    for names in by_model(m, [fqn for fqn, gathers in evaluation.items() if gathers]):
        model = all_units(m)[names[0]].model
        mine = [row for row in passes if row.model == model]
        cost_ns = _waited(m, names) if m.stalls_known else None
        share = (cost_ns or 0) / float(m.step_ns.mean())
        again = sum(evaluation[fqn] for fqn in names) >= repeated * max(
            sum(training.get(fqn, 0) for fqn in names), len(names) * len(m.step_ns)
        )
        if share >= exposed_share or again:
            repeats = sum(evaluation[fqn] for fqn in names) / len(m.step_ns)
            severity = Severity.WARNING if share >= exposed_share else Severity.INFO
            yield _finding(m, names, mine, repeats, cost_ns, severity, trained)


def _waited(m: Measures, names: list[str]) -> int:
    """What passes without gradients wait for some units, per step."""
    total = 0
    for rank in m.ranks:
        stalls = rank.no_grad_stalls
        ids = [at for at, spec in enumerate(rank.units) if spec.fqn in names]
        keep = rank.in_judged(stalls.step) & one_of(stalls.unit, ids)
        total += int(stalls.duration_ns[keep].sum())
    return per_step(m, total)


def _finding(
    m: Measures,
    names: list[str],
    passes: list[NoGrad],
    repeats: float,
    cost_ns: int | None,
    severity: Severity,
    trained: frozenset[int],
) -> Finding:
    main = passes[0] if passes else None
    purpose = "" if main is None else f" ({PURPOSES[main.purpose]})"
    number = sum(row.passes for row in passes) / len(m.step_ns)
    often = f"{number:.3g} a step" if passes else "some"
    wait = ""
    if cost_ns is not None:
        share = cost_ns / float(m.step_ns.mean())
        wait = f", exposed {ms(cost_ns)} ({of_step(share)})"
    where = f" at {main.where}" if main is not None and main.where else ""
    return Finding(
        severity=severity,
        confidence=Confidence.MEDIUM,
        summary=f"passes without gradients{purpose}, {often}{where}: they gather "
        f"{count(len(names), 'unit')} with {repeats:.3g} all-gathers per step, of "
        f"weights that do not change in between{wait}",
        units=tuple(names),
        phase="forward",
        cost_ns_per_step=cost_ns,
        evidence={
            "all_gathers_per_step": round(repeats, 4),
            "passes_per_step": round(number, 4),
            "purpose": None if main is None else main.purpose,
            "exposed_ns": cost_ns,
        },
        advice=gathered_once(m, names, passes, trained),
    )
