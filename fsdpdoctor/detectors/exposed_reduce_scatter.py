"""FD102: compute stood still while gradients were reduced."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import by_model
from fsdpdoctor.detectors.base import STALLS_KNOWN, detector, level
from fsdpdoctor.detectors.judged_stalls import Exposed, exposed, named_together
from fsdpdoctor.detectors.judged_steps import few_steps, on_cpu, steady
from fsdpdoctor.detectors.remedies import (
    present,
    reduce_buffers,
    separate_reduce_group,
)
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count, ms, of_step
from fsdpdoctor.schema import Evidence, Kind

# `docs/detectors.md` D01, as for FD101: the two share the step.
WARNING_SHARE, CRITICAL_SHARE = 0.05, 0.15


ALL_REDUCE = "exposed-all-reduce"
"""What it is called where nothing is sharded, and no reduce-scatter runs."""


@detector(
    "FD102",
    "exposed-reduce-scatter",
    needs={Evidence.STEPS},
    needs_any=STALLS_KNOWN,
    also=(ALL_REDUCE,),
)
def exposed_reduce_scatter(m: Measures) -> Iterator[Finding]:
    """Compute stood still for a reduce-scatter, or an all-reduce, of gradients.

    *Why it costs*: the step is longer by all of it. By default FSDP2 has one
    reduce-scatter input buffer: the next unit's gradients wait until the previous
    reduction has freed it. Reductions also share a communicator with all-gathers.

    *What to try*: two input buffers, a communicator of its own for the
    reduce-scatter, fewer reductions per step where gradients are accumulated
    (FD108), a larger micro-batch.

    *When it is wrong*: the last reduction of a backward has nothing to hide under and
    is information. A late rank's share does not raise the severity: FD401 judges it,
    and from one rank's trace alone its share cannot be told from the wire's. On CPU
    (gloo) FSDP2 always waits for the reduce-scatter, so there this is information
    about the test machine only.
    """
    step_ns = steady(m)
    every = exposed(m).of(Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)
    stalls = every if on_cpu(m) else every.body
    if stalls.ns_per_step / step_ns < WARNING_SHARE:
        if not named_together(m, every):
            return
        stalls = every  # with the last ones, which nothing can hide: named all the same
    for names in by_model(m, list(every.by_unit())) or [[]]:
        mine = stalls.named(*names) if names else stalls
        if mine.ns_per_step:
            yield _finding(m, mine, every.named(*names) if names else every)


def _finding(m: Measures, stalls: Exposed, every: Exposed) -> Finding:
    """One model's reductions; `every` has those with nothing to hide under, too."""
    step_ns, cost_ns = steady(m), stalls.ns_per_step
    names = tuple(stalls.by_unit())
    own_ns = cost_ns - stalls.late_rank_ns
    severity = level(own_ns / step_ns, WARNING_SHARE, CRITICAL_SHARE)
    if on_cpu(m) or every.body.ns_per_step / step_ns < WARNING_SHARE:
        severity = Severity.INFO
    of_units = f" of {count(len(names), 'unit')}" if names else ""
    reduces = stalls.of(Kind.REDUCE_SCATTER).ns_per_step
    return Finding(
        name="" if reduces else ALL_REDUCE,
        severity=severity,
        confidence=Confidence.MEDIUM if few_steps(m) else Confidence.HIGH,
        summary=f"compute waits {ms(cost_ns)} per step ({of_step(cost_ns / step_ns)}) "
        f"for the {'gradient reductions' if reduces else 'all-reduces'}{of_units}"
        + _why(m, stalls),
        units=names,
        phase="backward",
        ranks=stalls.ranks(),
        cost_ns_per_step=cost_ns,
        evidence={
            "share_of_step": round(cost_ns / step_ns, 4),
            "by_cause": stalls.by_cause(),
            "reduce_scatter_ns": reduces,
            "all_reduce_ns": stalls.of(Kind.ALL_REDUCE).ns_per_step,
            "last_of_backward_ns": every.edge.ns_per_step,
            "units": [
                {"unit": name, "exposed_ns": ns}
                for name, ns in stalls.by_unit().items()
            ],
        },
        advice=_advice(m, stalls),
        places=stalls.places(),
    )


def _why(m: Measures, stalls: Exposed) -> str:
    """What excuses them."""
    if on_cpu(m):
        return " (on CPU FSDP2 always waits for them)"
    last_ns = stalls.edge.ns_per_step
    if not last_ns:
        return ""
    return (
        f", {ms(last_ns)} of it for the last of each backward, which has nothing to "
        "hide under"
    )


def _advice(m: Measures, stalls: Exposed) -> tuple[Advice, ...]:
    if on_cpu(m):
        return (
            Advice(text="Nothing to change: gloo cannot overlap a reduce-scatter."),
        )
    wider = Advice(text="A larger micro-batch gives each reduction more compute.")
    if not m.units:
        return (wider,)  # DDP, or a trace without labels: FSDP2's calls do not apply
    waits_for_buffer = bool((stalls.rows.kind == Kind.REDUCE_SCATTER).any())
    queued = bool(stalls.rows.queued.any())
    names = stalls.by_unit()
    return (
        *present(
            reduce_buffers(m, names) if waits_for_buffer else None,
            separate_reduce_group(m, names) if queued else None,
        ),
        wider,
    )
