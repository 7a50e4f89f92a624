"""FD201: too much in one unit, or outside every unit."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.changes.unit_tree import block_units, first_path, inside
from fsdpdoctor.detectors.base import CannotTell, detector, level
from fsdpdoctor.detectors.judged_stalls import exposed
from fsdpdoctor.detectors.judged_steps import all_units, units_around
from fsdpdoctor.detectors.remedies import plan_advice, several_models
from fsdpdoctor.detectors.unit_order import unit_tree_of
from fsdpdoctor.finding import Advice, Confidence, Finding
from fsdpdoctor.quantities import count, percent, size
from fsdpdoctor.schema import (
    UNKNOWN,
    BlockSpec,
    Evidence,
    Kind,
    ModelSpec,
    UnitSpec,
)

# Blocks that are not units matter by the share of parameters they hold: half the
# model in one unit is `docs/detectors.md` D05's rule; below a tenth nothing is gained.
WARNING_SHARE, CRITICAL_SHARE = 0.10, 0.50

# Two siblings of one class are enough to overlap one with the other.
MIN_REPEATS = 2


@detector("FD201", "wrap-too-coarse", needs={Evidence.UNITS, Evidence.CONFIG})
def wrap_too_coarse(m: Measures) -> Iterator[Finding]:
    """Repeated blocks are no units.

    *Why it costs*: a unit is gathered as one: with the whole model in the root, all
    of it must arrive before the first layer runs, nothing overlaps, and the peak
    holds it all.

    *What to try*: `fully_shard` every block, inner modules first, then the root
    last: it takes what is left.

    *When it is wrong*: blocks inside a unit that is small beside the model (the
    experts of one layer) are left alone. A single giant layer cannot be split so.
    Parameters outside every unit are FD508.
    """
    specs = all_units(m)
    model = m.ranks[0].header.model if m.ranks else None
    if model is None:
        raise CannotTell("the model's modules were not recorded", Evidence.CONFIG)
    if not specs:
        return  # FD506 says what wraps the model instead
    yield from _blocks(m, model, specs)


def _blocks(
    m: Measures, model: ModelSpec, specs: dict[str, UnitSpec]
) -> Iterator[Finding]:
    total = _numel(model, specs)
    for block in model.blocks:
        left = block.count - block.units
        share = left * block.numel / total if total else 0.0
        owner = _owner(block, units_around(specs, block))
        if block.count < MIN_REPEATS or left < 1 or share < WARNING_SHARE:
            continue
        if owner is None or (
            not specs[owner].is_root and specs[owner].numel < CRITICAL_SHARE * total
        ):
            continue
        yield _block_finding(m, block, owner, share, specs)


def _numel(model: ModelSpec, specs: dict[str, UnitSpec]) -> int:
    """Parameters of the model, or of its units where the model did not say."""
    if model.numel != UNKNOWN:
        return model.numel
    return sum(max(spec.numel, 0) for spec in specs.values())


def _owner(block: BlockSpec, specs: dict[str, UnitSpec]) -> str | None:
    """The innermost unit around a container; None: it is outside every unit."""
    around = [
        fqn for fqn in specs if fqn == block.container or inside(block.container, fqn)
    ]
    return max(around, key=lambda fqn: len(first_path(fqn)), default=None)


def _block_finding(
    m: Measures,
    block: BlockSpec,
    owner: str,
    share: float,
    specs: dict[str, UnitSpec],
) -> Finding:
    stalls = exposed(m).of(Kind.ALL_GATHER).named(owner)
    known = m.stalls_known and len(m.step_ns) > 0
    spec = specs[owner]
    held = spec.unsharded_bytes
    at_once = "" if held == UNKNOWN else f", so that {size(held)} are gathered at once"
    return Finding(
        severity=level(share, WARNING_SHARE, CRITICAL_SHARE),
        confidence=Confidence.HIGH,
        summary=f"{count(block.count - block.units, block.module_class)} of "
        f"{block.container} with {percent(share)} of the parameters are part of the "
        f"unit {owner}{at_once}",
        units=(owner,),
        cost_ns_per_step=stalls.ns_per_step if known else None,
        cost_bytes=None if held == UNKNOWN else held,
        evidence={
            "container": block.container,
            "class": block.module_class,
            "blocks": block.count,
            "blocks_that_are_units": block.units,
            "share_of_parameters": round(share, 4),
            "units": len(specs),
        },
        advice=(_wrap(m, block, owner, held),),
        places=stalls.places(),
    )


def _wrap(m: Measures, block: BlockSpec, owner: str, held: int) -> Advice:
    saved = None
    if held != UNKNOWN and block.count > 1:
        # Two blocks are gathered at a time instead of all.
        saved = -round(held * (1 - 2 / block.count)) if block.count > 2 else 0
    text = (
        f"Make every {block.module_class} a unit, with the same arguments as the root."
    )
    tree, plan = unit_tree_of(m), _change(m, block)
    around = tree.named(owner)
    assert around is not None
    new = [unit for unit in block_units(block, around) if unit.fqn not in tree]
    if several_models(m) or not new:
        return Advice(text=text, memory_cost_bytes=saved)
    return plan_advice(
        m,
        text,
        plan or {},
        after=tree.with_units(new),
        memory_cost_bytes=saved,
        simulated=plan is not None,
    )


def _change(m: Measures, block: BlockSpec) -> dict[str, object] | None:
    """None where the class does not say which blocks are meant."""
    model = m.ranks[0].header.model
    blocks = model.blocks if model else ()
    alike = [b for b in blocks if b.module_class == block.module_class]
    return {"wrap": block.module_class} if alike == [block] else None
