"""What a plan comes to for one model: every unit and setting by name, to apply."""

from __future__ import annotations

from typing import Any

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.plan_file import FOR_ALL_UNITS, module_names
from fsdpdoctor.schema import ROOT
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.step import Step


def settings(
    plan: Plan, step: Step, constraints: RunConstraints | None = None
) -> dict[str, Any]:
    """What a plan comes to for a model, every unit and list by name.

    `step` is the step as the plan makes it. Only what the plan changes is there, and
    the units that never ran, by name, so that they stay units.
    """
    idle = [spec.fqn for spec in constraints.idle] if constraints else []
    changes = plan.changes
    regroups = {"merge", "split_root", "wrap"} & set(changes)
    names = [u.fqn for u in step.units]
    units: dict[str, dict[str, Any]] = {}
    for unit in step.units:
        said: dict[str, Any] = {}
        if "reshard_after_forward" in changes or regroups:
            said["reshard_after_forward"] = unit.reshard_after_forward
        # After a regrouping the script's own lists name units that are others now.
        if regroups or {"forward_prefetch", "forward_prefetch_of"} & set(changes):
            said["forward_prefetch"] = [names[t] for t in unit.forward_prefetch]
        if regroups or {"backward_prefetch", "backward_prefetch_of"} & set(changes):
            said["backward_prefetch"] = [names[t] for t in unit.backward_prefetch]
        units[unit.fqn] = said
    units |= {name: {} for name in idle}
    result: dict[str, Any] = {"units": units}
    if constraints is not None and constraints.parameters is not None:
        result["parameters"] = constraints.parameters
    if regroups:
        result["groups"] = [list(module_names(name)) for name in units if name != ROOT]
    if "replicate" in changes:
        result["mesh"] = {"replicate": step.mesh.replicate, "shard": step.mesh.shard}
    for name in FOR_ALL_UNITS:
        if name in changes:
            result[name] = changes[name]
    if "accumulation" in changes:
        result["micro_batches"] = len(step.micro_batches)
    return result
