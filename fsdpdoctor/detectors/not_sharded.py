"""FD506: the model is not sharded with FSDP2 at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from fsdpdoctor.analysis.alike.exchanges import (
    Exchange,
    Unkept,
    exchanges,
    kept_alike,
    kept_apart,
)
from fsdpdoctor.analysis.alike.replicas import Replica, compared
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.changes.code import code
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.unit_tree import TreeUnit, UnitTree, block_units
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.judged_steps import all_units
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity, Value
from fsdpdoctor.quantities import count, size
from fsdpdoctor.schema import ROOT, BlockSpec, Evidence, ModelSpec, ReplicaKind

WRAPPERS = re.compile(r"^module\.|(?<=\.)module\.(?=_fsdp)|_fsdp_wrapped_module\.?")
"""What DDP and FSDP1 put before the names of the model that they wrap."""

SAYS = {
    "ddp": "DistributedDataParallel wraps the model: every rank holds all of it",
    "fsdp1": "FullyShardedDataParallel (FSDP1) wraps the model, not fully_shard",
    "fsdp2": "fully_shard was called, but no unit holds parameters",
}
"""Of wrappers that were seen: that it is not FSDP2's unit is proved."""

FALLEN_BACK = "Accelerate was told to use FSDP and fell back"

NOTHING = "nothing of PyTorch's shards or replicates the model"

GRADIENT_BYTES = 4
"""Of an element: float32, which scripts reduce in half the width at the least."""


@detector("FD506", "not-sharded")
def not_sharded(m: Measures) -> Iterator[Finding]:
    """No FSDP2 unit was found in the model.

    *Why it costs*: with DDP each rank holds all parameters, gradients and optimizer
    states. With FSDP1 the units are flat parameters, and none of FSDP2's knobs
    apply. Without either, ranks do not exchange gradients, unless the script does.

    *What to try*: `fully_shard` each block, then the model, and build the optimizer
    afterwards.

    *When it is wrong*: where the model fits, DDP can be the faster choice. One
    process alone has nothing to shard. A script may reduce its gradients itself, or
    divide the model by hand: that ranks train apart is said where samples of two
    ranks began alike and differ, and the ranks exchange neither activations nor as
    much as they hold. For a trace that somebody brought it is information only.
    """
    if all_units(m):
        return
    model = m.ranks[0].header.model if m.ranks else None
    if model is None:
        raise CannotTell("no model was recorded", Evidence.CONFIG)
    if model.wrapper not in SAYS and not any(len(rank.steps) for rank in m.ranks):
        raise CannotTell(
            "no step was recorded: units are known from their first forward on",
            Evidence.STEPS,
        )
    # Who records a run with this tool expects FSDP2; a trace may come from anyone.
    meant = Evidence.CONFIG in m.evidence and m.run.world_size > 1
    if model.wrapper in SAYS:
        severity = Severity.CRITICAL if meant else Severity.INFO
        says = SAYS[model.wrapper]
        if model.wrapper == "ddp" and _meant_by_accelerate(m):
            says = f"{FALLEN_BACK}: {says}"
        judged = _Judged(severity, Confidence.HIGH, says, {})
    elif meant:
        judged = _by_hand(m, model)
    else:
        judged = _Judged(Severity.INFO, Confidence.HIGH, NOTHING, {})
    yield Finding(
        severity=judged.severity,
        confidence=judged.confidence,
        summary=f"no FSDP2 unit: {judged.says}",
        evidence={"wrapper": model.wrapper, "model_class": model.model_class}
        | judged.evidence,
        advice=(_of_accelerate(m, model) or _shard(model.blocks),),
    )


def _meant_by_accelerate(m: Measures) -> bool:
    """Whether its file, or a Trainer's arguments, ask for FSDP."""
    asked = m.ranks[0].header.environment.get("ACCELERATE_USE_FSDP", "")
    return asked.lower() == "true"


def _of_accelerate(m: Measures, model: ModelSpec) -> Advice | None:
    """What to change where Accelerate shards."""
    if not _meant_by_accelerate(m):
        return None
    if model.wrapper == "ddp":
        text = (
            "On CPU (`use_cpu: true`, or no device) Accelerate has no FSDP, whatever "
            "its file says. Run it on a device."
        )
        return Advice(text=text)
    if model.wrapper == "fsdp1":
        return Advice(
            text="Accelerate shards with FSDP1 unless its file says `fsdp_version: 2` "
            'under `fsdp_config` (a Trainer: `fsdp_config={"version": 2}`).'
        )
    return None


class _Judged(NamedTuple):
    severity: Severity
    confidence: Confidence
    says: str
    evidence: dict[str, Value]


def _by_hand(m: Measures, model: ModelSpec) -> _Judged:
    """A model in no wrapper, on several ranks: what the script makes of it."""
    found = exchanges(m.ranks)
    held = max(model.trainable_numel, 0) * GRADIENT_BYTES
    unkept = Unkept(found, held)
    samples = [
        one
        for one in compared([rank.header for rank in m.ranks])
        if one.kind == ReplicaKind.OUTSIDE and one.trainable
    ]
    for one in samples:
        if one.drifted and None in kept_apart(one, unkept):
            return _apart(one)
    numbers = m.rank_numbers
    if (work := next((e for e in found if e.of_work), None)) is not None:
        return _Judged(
            Severity.INFO,
            Confidence.MEDIUM,
            f"{NOTHING}: its ranks exchange {work.kind}{_at(work)} in their forwards, "
            "so the script divides the model by hand",
            {"exchange": work.kind, "at": work.where},
        )
    mine = next((k for r in numbers if (k := kept_alike(found, held, r))), ())
    if mine or (samples and all(one.alike and one.changes for one in samples)):
        return _in_step(mine, compared_ranks=bool(samples))
    return _unknown(m, found, samples)


def _apart(one: Replica) -> _Judged:
    camps = " and ".join("/".join(map(str, camp)) for camp in one.camps)
    return _Judged(
        Severity.CRITICAL,
        Confidence.HIGH,
        f"{NOTHING}, and ranks train apart: {one.name} began alike on ranks {camps} "
        f"and differs since step {one.differ_since}",
        {
            "parameter": one.name,
            "alike_at_the_end": [list(camp) for camp in one.camps],
            "differ_since_step": one.differ_since,
        },
    )


def _in_step(mine: tuple[Exchange, ...], *, compared_ranks: bool) -> _Judged:
    """The script keeps its ranks alike, or seems to."""
    if not mine:
        says = "yet the ranks' copies stay alike as they train"
        evidence: dict[str, Value] = {}
    else:
        moved = size(sum(one.step_bytes for one in mine))
        says = (
            f"the script's own {mine[0].kind}{_at(mine[0])} moves {moved} in a step, "
            "as much as the gradients"
        )
        evidence = {"exchange": mine[0].kind, "at": mine[0].where}
    sure = Confidence.HIGH if compared_ranks else Confidence.MEDIUM
    return _Judged(Severity.INFO, sure, f"{NOTHING}; {says}", evidence)


def _unknown(
    m: Measures, found: tuple[Exchange, ...], samples: list[Replica]
) -> _Judged:
    """Nothing was seen that keeps ranks alike, and nothing that proves them apart."""
    if Evidence.OTHER_COLLECTIVES not in m.evidence:
        seen = "what the script exchanges itself was not recorded"
    elif not found:
        steps = max((len(rank.steps) for rank in m.ranks), default=0)
        seen = f"no collective of the script's own was seen in {count(steps, 'step')}"
    else:
        most = max(found, key=lambda one: one.step_bytes)
        seen = (
            f"the script's own collectives move less than the gradients ({most.kind}"
            f"{_at(most)}: {size(most.step_bytes)} in a step)"
        )
    if any(not one.began_alike for one in samples):
        rest = "the ranks' copies were not sampled alike before the first step"
    else:
        rest = "a record of two ranks from their first step on would prove it"
    return _Judged(
        Severity.WARNING,
        Confidence.MEDIUM,
        f"{NOTHING}, and perhaps ranks train apart: {seen}; {rest}",
        {},
    )


def _at(one: Exchange) -> str:
    return f" at {one.where}" if one.where else ""


def _shard(blocks: tuple[BlockSpec, ...]) -> Advice:
    """The model's own blocks, largest first, then the model."""
    root = TreeUnit(fqn=ROOT, is_root=True)
    units = [root]
    if blocks:
        largest = max(blocks, key=lambda block: block.count * block.numel)
        plain = WRAPPERS.sub("", largest.container)
        units += block_units(replace(largest, container=plain), root)
    return Advice(
        text="Shard each block, then the model.",
        code=code(Plan(), UnitTree(), UnitTree(units=tuple(units))),
    )
