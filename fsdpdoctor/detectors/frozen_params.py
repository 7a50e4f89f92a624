"""FD503: parameters that never change are gathered again and again."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.frozen_backward import backward_for_nothing
from fsdpdoctor.detectors.frozen_wide import wide_findings
from fsdpdoctor.detectors.judged_stalls import exposed
from fsdpdoctor.detectors.judged_steps import all_units, gathered_by_unit, per_step
from fsdpdoctor.detectors.remedies import keep_unsharded, present
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count, ms, percent, size
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind, UnitSpec, median

# `docs/detectors.md` D14.
FROZEN_SHARE = 0.90

# What their gathers must cost before memory is spent on them: as FD101.
EXPOSED_SHARE = 0.05

# An adapter that is its own unit, beside units this many times its size.
TINY_UNIT = 0.01


@detector("FD503", "frozen-params", needs={Evidence.UNITS, Evidence.CONFIG})
def frozen_params(m: Measures) -> Iterator[Finding]:
    """Most gathered parameters are frozen, or frozen ones cost as if they trained.

    Adapters that are units alone; frozen parameters gathered, or only held, in float32
    where the model trains in a narrower dtype; frozen units before all that trains that
    run in backward.

    *Why it costs*: frozen weights are the same in every step, and are still
    gathered twice per micro-batch. Reduce-scatters do not show it: there are few.
    Adapters that are units of their own add a tiny collective per layer.

    *What to try*: replicate the frozen base where it fits (a `(world, 1)` mesh, or
    `ignored_params`); keep units gathered between forward and backward; keep
    adapters in the unit of their block; store what is frozen in the dtype that it is
    used in; run a frozen tower without gradients.

    *When it is wrong*: replicating needs the memory given. One dtype is needed
    among the trainable parameters of a unit. A tower may be wide on purpose, and a
    gradient for the input may be wanted (a prompt that is learned, a saliency map).
    """
    specs = all_units(m)
    total = sum(max(spec.numel, 0) for spec in specs.values())
    if not total or any(spec.frozen_numel == UNKNOWN for spec in specs.values()):
        raise CannotTell(
            "which parameters are frozen was not recorded", Evidence.CONFIG
        )
    share = sum(max(spec.frozen_numel, 0) for spec in specs.values()) / total
    if share >= FROZEN_SHARE:
        mostly = [n for n, s in specs.items() if s.frozen_numel > s.trainable_numel]
        yield _gathered(m, specs, mostly, share)
    yield from _adapters(m, specs)
    yield from wide_findings(m)
    yield from backward_for_nothing(m)


def _frozen_share(
    m: Measures, specs: dict[str, UnitSpec], frozen: list[str], share: float
) -> str:
    """Of the whole model, where it is known: units may hold a part of it."""
    model = m.ranks[0].header.model
    if model is None or model.numel <= 0:
        return f"{percent(share)} of the units' parameters"
    gathered = sum(specs[fqn].frozen_numel for fqn in frozen)
    return f"{percent(gathered / model.numel)} of the model's parameters"


def _gathered(
    m: Measures, specs: dict[str, UnitSpec], frozen: list[str], share: float
) -> Finding:
    # A unit that trains in part is gathered for that part all the same.
    gathered = gathered_by_unit(m)
    moved = sum(
        gathered[name] * specs[name].frozen_numel // specs[name].numel
        for name in frozen
    )
    stalls = exposed(m).of(Kind.ALL_GATHER).named(*frozen)
    timed = m.stalls_known and len(m.step_ns) > 0
    cost_ns = stalls.ns_per_step if timed else None
    matters = timed and stalls.ns_per_step / float(m.step_ns.mean()) >= EXPOSED_SHARE
    replica = sum(
        (max(spec.param_bytes, 0) - max(spec.shard_bytes, 0))
        * spec.frozen_numel
        // spec.numel
        for spec in (specs[fqn] for fqn in frozen)
    )
    wait = "" if cost_ns is None else f" and waits {ms(cost_ns)}"
    return Finding(
        severity=Severity.WARNING if matters else Severity.INFO,
        confidence=Confidence.HIGH,
        summary=f"{_frozen_share(m, specs, frozen, share)} never change; gathering "
        f"them moves {size(per_step(m, moved))} per step and rank{wait}",
        units=tuple(frozen),
        cost_ns_per_step=cost_ns,
        cost_bytes=per_step(m, moved),
        evidence={
            "frozen_share": round(share, 4),
            "bytes_to_replicate": replica,
        },
        advice=(
            Advice(
                text="Replicate the frozen parameters: leave them out of sharding.",
                code="\n".join(
                    [
                        "# Before your own fully_shard calls, `model` on its device.",
                        "kept = {p for p in model.parameters() if not p.requires_grad}",
                        "# Then fully_shard(module, ignored_params=kept) for all.",
                    ]
                ),
                memory_cost_bytes=replica,
            ),
            *present(keep_unsharded(m, frozen)),
        ),
        places=stalls.places(),
    )


def _adapters(m: Measures, specs: dict[str, UnitSpec]) -> Iterator[Finding]:
    """Trainable units that are tiny beside the frozen ones."""
    sizes = [spec.numel for spec in specs.values() if spec.frozen_numel > 0]
    if not sizes:
        return
    small = TINY_UNIT * median(sizes)
    names = [
        fqn
        for fqn, spec in specs.items()
        if not spec.is_root and 0 < spec.trainable_numel == spec.numel <= small
    ]
    if len(names) < 2:
        return
    stalls = exposed(m).named(*names)
    timed = m.stalls_known and len(m.step_ns) > 0
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=f"{count(len(names), 'adapter')} are units of their own, each under "
        f"{percent(TINY_UNIT)} of a frozen unit's parameters",
        units=tuple(names),
        cost_ns_per_step=stalls.ns_per_step if timed else None,
        evidence={"median_frozen_numel": round(median(sizes))},
        advice=(
            Advice(
                text="Shard the block and not the adapters in it: they share its "
                "collectives.",
                memory_cost_bytes=0,
            ),
        ),
    )
