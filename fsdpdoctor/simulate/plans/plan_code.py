"""A prediction's code: its plan for the run's own units, by the one writer."""

from __future__ import annotations

from dataclasses import replace

from fsdpdoctor.changes.frameworks import code_in
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.unit_tree import TreeUnit, UnitTree, unit_of
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.step import Step
from fsdpdoctor.simulate.plans.change_step import backward_order


def tree_of(step: Step, constraints: RunConstraints) -> UnitTree:
    """A step's units as they are sharded."""
    names = [unit.fqn for unit in step.units]
    roots = step.root.units
    recorded = {spec.fqn: spec for spec in constraints.units}
    # A unit that a plan makes is told what the root was, or any other.
    usual = next(iter(constraints.units), None)
    mesh = f"(replicate={step.mesh.replicate}, shard={step.mesh.shard})"
    units: list[TreeUnit] = []
    for at, unit in enumerate(step.units):
        spec = recorded.get(unit.fqn, usual)
        units.append(
            TreeUnit(
                fqn=unit.fqn,
                is_root=at in roots,
                reshard_after_forward=unit.reshard_after_forward,
                param_dtype=unit.param_dtype,
                reduce_dtype=unit.reduce_dtype,
                offload=None if spec is None else spec.offload,
                mesh=mesh if step.mesh.replicate > 1 else f"({step.mesh.shard})",
                forward_prefetch=tuple(names[t] for t in unit.forward_prefetch),
                backward_prefetch=tuple(names[t] for t in unit.backward_prefetch),
            )
        )
    units += [replace(unit_of(spec), idle=True) for spec in constraints.idle]
    return UnitTree(
        units=tuple(units),
        backward=tuple(names[u] for u in backward_order(step)),
        device="cpu" if step.blocking else "cuda",
        world_size=constraints.world_size or step.mesh.world_size,
        not_shown=_not_shown(constraints) if constraints.inferred else (),
    )


def _not_shown(constraints: RunConstraints) -> tuple[str, ...]:
    """Arguments of `fully_shard` that a trace does not show: of a policy what the
    collectives' dtypes say, if they say it.
    """
    policy = (
        "mp_policy's output_dtype"
        if constraints.dtypes_shown
        else "mp_policy (dtypes are not known)"
    )
    return (policy, "offload_policy", "ignored_params", "shard_placement_fn")


def plan_code(
    plan: Plan,
    base: Step,
    made: Step,
    constraints: RunConstraints,
    dialect: str = "fully_shard",
) -> str:
    """A plan's code in one of `frameworks.DIALECTS`. `made` is the changed step."""
    told = plan
    if plan.accumulation is not None:
        told = replace(plan, micro_batches=len(made.micro_batches))
    before, after = tree_of(base, constraints), tree_of(made, constraints)
    return code_in(dialect, told, before, after, constraints.blocks)
