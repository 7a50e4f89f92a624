"""What reentrant checkpointing does to FSDP2's units (FD105, FD504).

`checkpoint(..., use_reentrant=True)` runs its part without gradients and again, inside
a backward of its own, as the outer backward comes to it: FSDP2's order of backwards,
prefetch lists and hooks then meet forwards where they expect backwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import level
from fsdpdoctor.detectors.judged_stalls import Exposed, exposed
from fsdpdoctor.detectors.judged_steps import unit_sums
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count, ms, of_step
from fsdpdoctor.schema import Flag, Kind, Phase, distinct

# As FD101: below it a fix is lost in the step's jitter.
WARNING_SHARE = 0.05


def reentrant(m: Measures) -> bool:
    """Whether the model checkpoints reentrantly, as far as was seen."""
    models = (rank.header.model for rank in m.ranks)
    return any(
        model is not None and model.checkpoint == "reentrant" for model in models
    )


def not_ahead(m: Measures) -> Iterator[Finding]:
    """Units that only a recomputation gathers in backward: nothing prefetches them."""
    if not reentrant(m) or not m.stalls_known or not len(m.step_ns):
        return
    late = _recomputed(m)
    gathered = unit_sums(m, "all_gathers", Phase.BACKWARD)
    names = tuple(name for name in late.by_unit() if gathered.get(name))
    if not names:
        return
    cost_ns = late.ns_per_step
    share = cost_ns / float(m.step_ns.mean())
    # What the host waits in cannot run ahead, whoever issues it.
    blocking = bool((late.rows.flags & Flag.BLOCKING != 0).all())
    are = "is" if len(names) == 1 else "are"
    yield Finding(
        severity=Severity.INFO if blocking else level(share, WARNING_SHARE),
        confidence=Confidence.HIGH,
        summary=f"{count(len(names), 'unit')} inside reentrant checkpoints {are} "
        "gathered in backward as the forward runs again, and not ahead of it: FSDP2's "
        f"backward prefetch does not know their order; {ms(cost_ns)} per step "
        f"({of_step(share)}) exposed",
        units=names,
        phase="backward",
        ranks=late.ranks(),
        cost_ns_per_step=cost_ns,
        evidence={"checkpoint": "reentrant", "exposed_ns": cost_ns},
        advice=(
            Advice(
                text="Pass use_reentrant=False to checkpoint(): the units then run in "
                "backward in the order that FSDP2 prefetches.",
                memory_cost_bytes=0,
            ),
        ),
        places=late.places(),
    )


def _recomputed(m: Measures) -> Exposed:
    """The stalls of gathers that a recomputation issued itself."""
    stalls = exposed(m).of(Kind.ALL_GATHER, phase=Phase.BACKWARD)
    flags = stalls.rows.flags
    ahead = Flag.BACKWARD_PREFETCH | Flag.FORWARD_PREFETCH | Flag.NEVER_USED
    return stalls.where((flags & Flag.RECOMPUTE != 0) & (flags & ahead == 0))


def without_gradient(m: Measures, lost: Sequence[str]) -> Finding | None:
    """Units that ran and had no backward, because of what a reentrant checkpoint is:
    where no input of it needs a gradient, nothing in it gets one.
    """
    again = unit_sums(m, "recomputes")
    reduced = {
        rank.unit_name(int(unit))
        for rank in m.ranks
        for rows in (rank.collectives.rows(rank.in_judged(rank.collectives.step)),)
        for unit in distinct(rows.unit[rows.kind == Kind.REDUCE_SCATTER])
    }
    names = [name for name in lost if not again.get(name) and name not in reduced]
    if not reentrant(m) or not names:
        return None
    stuck = sum(
        optimizer.without_grad
        for rank in m.ranks[:1]
        if rank.header.model is not None
        for optimizer in rank.header.model.optimizers
    )
    listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    held = f"; {count(stuck, 'tensor')} of the optimizer had no gradient"
    return Finding(
        severity=Severity.CRITICAL if stuck else Severity.WARNING,
        confidence=Confidence.HIGH if stuck else Confidence.MEDIUM,
        summary=f"{count(len(names), 'trainable unit')} never had a backward, and "
        "checkpoints are reentrant: what runs in one gets no gradient where none of "
        f"its inputs needs one ({listed}){held if stuck else ''}",
        units=tuple(names),
        phase="backward",
        evidence={
            "checkpoint": "reentrant",
            "units": list(names),
            "tensors_without_gradient": stuck,
        },
        advice=(
            Advice(
                text="Pass use_reentrant=False to checkpoint(): then what is inside "
                "gets its gradients, whatever its inputs need.",
                memory_cost_bytes=0,
            ),
        ),
    )
