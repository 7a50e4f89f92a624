"""FD202: many small units where a few would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.changes.unit_tree import block_units, first_path, inside
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.judged_stalls import exposed
from fsdpdoctor.detectors.judged_steps import (
    all_units,
    per_step,
    unit_sums,
    units_around,
)
from fsdpdoctor.detectors.remedies import plan_advice, several_models
from fsdpdoctor.detectors.unit_order import unit_tree_of
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import MIB, count, ms, percent, size
from fsdpdoctor.schema import UNKNOWN, BlockSpec, Evidence, Kind, UnitSpec, median

# `docs/detectors.md` D06: one unit per block hides best; two or more per block only pay
# where each moves enough bytes.
UNITS_PER_BLOCK = 2

# D06 and B09: messages of 128 MiB and more use a link well, those of less than
# 8 MiB are mostly latency.
EFFICIENT_BYTES, SMALL_BYTES = 128 * MIB, 8 * MIB

# D06: what small units must take of the step to be worth a change.
TIME_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fine:
    """A container whose blocks hold several units each."""

    block: BlockSpec
    units: tuple[UnitSpec, ...]

    @property
    def per_block(self) -> float:
        return len(self.units) / self.block.count

    @property
    def median_bytes(self) -> int:
        return int(median([u.unsharded_bytes for u in self.units]))


@detector("FD202", "wrap-too-fine", needs={Evidence.UNITS, Evidence.CONFIG})
def wrap_too_fine(m: Measures) -> Iterator[Finding]:
    """Each repeated block is cut into several small units.

    *Why it costs*: every unit has its own all-gathers and reduce-scatter, each with
    its latency and its hooks on the host, and less compute to hide the next one
    under. The cost given is all exposed time of these units: what merging wins is
    less.

    *What to try*: one unit per block.

    *When it is wrong*: experts of a mixture are wrapped apart on purpose and are
    left out, and so are units that move 128 MiB and more, which a link takes well.
    A block that is too large to be gathered at once may have to be cut.
    """
    model = m.ranks[0].header.model if m.ranks else None
    if model is None:
        raise CannotTell("the model's modules were not recorded", Evidence.CONFIG)
    specs = all_units(m)
    # An outer container is judged with everything in it; its parts are not again.
    outer = [
        block
        for block in model.blocks
        if not any(
            f"{block.container}.".startswith(f"{o.container}.")
            for o in model.blocks
            if o is not block and o.model == block.model
        )
    ]
    for block in outer:
        inner = tuple(
            spec
            for spec in units_around(specs, block).values()
            if first_path(spec.fqn).startswith(f"{block.container}.")
            and "expert" not in spec.fqn
        )
        fine = _Fine(block=block, units=inner)
        if fine.per_block >= UNITS_PER_BLOCK and not any(
            u.unsharded_bytes == UNKNOWN for u in inner
        ):
            yield from _judge(m, fine)


def _judge(m: Measures, fine: _Fine) -> Iterator[Finding]:
    if fine.median_bytes >= EFFICIENT_BYTES:
        return
    names = tuple(unit.fqn for unit in fine.units)
    stalls = exposed(m).named(*names)
    timed = len(m.step_ns) > 0
    cost_ns = stalls.ns_per_step if m.stalls_known and timed else None
    hooks = unit_sums(m, "hook_ns")
    hook_ns = per_step(m, sum(hooks.get(name, 0) for name in names))
    step_ns = float(m.step_ns.mean()) if timed else None
    share = ((cost_ns or 0) + hook_ns) / step_ns if step_ns else None
    small = fine.median_bytes < SMALL_BYTES
    # Not timed: small messages are latency wherever they are sent.
    matters = small and (share is None or share >= TIME_SHARE)
    spare = len(fine.units) - fine.block.count
    took = "" if cost_ns is None else f"; they are waited for {ms(cost_ns)} per step"
    yield Finding(
        severity=Severity.WARNING if matters else Severity.INFO,
        confidence=Confidence.HIGH if timed else Confidence.MEDIUM,
        summary=f"{count(len(fine.units), 'unit')} in {fine.block.count} "
        f"{fine.block.module_class} blocks, {size(fine.median_bytes)} each in the "
        f"median{took}",
        units=names,
        cost_ns_per_step=cost_ns,
        evidence={
            "container": fine.block.container,
            "units_per_block": round(fine.per_block, 3),
            "median_bytes": fine.median_bytes,
            "hook_ns": hook_ns,
            "all_gathers_ns": stalls.of(Kind.ALL_GATHER).ns_per_step,
            "share_of_step": None if share is None else percent(share),
            "units_to_merge": spare,
        },
        advice=(_merge(m, fine),),
        places=stalls.places(),
    )


def _merge(m: Measures, fine: _Fine) -> Advice:
    """One unit per block; its gathered bytes are those of its parts together."""
    whole = sum(unit.unsharded_bytes for unit in fine.units) // fine.block.count
    largest = max(unit.unsharded_bytes for unit in fine.units)
    text = f"Shard each {fine.block.module_class} as one unit, and nothing in it."
    # Two units are gathered at a time, now whole blocks.
    memory = 2 * max(whole - largest, 0)
    if several_models(m):
        return Advice(text=text, memory_cost_bytes=memory)
    tree, plan = unit_tree_of(m), _change(fine)
    part = tree.named(fine.units[0].fqn)
    assert part is not None
    new = [replace(unit, is_root=False) for unit in block_units(fine.block, part)]
    lost = [unit.fqn for unit in fine.units]
    return plan_advice(
        m,
        text,
        plan or {},
        after=tree.with_units(new, *lost),
        memory_cost_bytes=memory,
        simulated=plan is not None,
    )


def _change(fine: _Fine) -> dict[str, object] | None:
    """Neighbours merged, where those of one block come to the block as a whole."""
    depth = len(fine.block.container.split(".")) + 1
    counts = Counter(first_path(u.fqn).split(".")[depth - 1] for u in fine.units)
    nested = any(inside(a.fqn, b.fqn) for a in fine.units for b in fine.units)
    alike = {(len(u.params), u.reshard_after_forward) for u in fine.units}
    whole = len(counts) == fine.block.count and len(set(counts.values())) == 1
    if nested or not whole or len(alike) > 1:
        return None
    return {"merge": len(fine.units) // fine.block.count}
