"""The lines that make a plan true, for the user's own modules; they run as pasted.

They expect `model`: the sharded model, before its first forward. What must be said
to `fully_shard` itself is code that replaces the user's own calls, marked so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fsdpdoctor.plan_file import module_names
from fsdpdoctor.schema import ROOT
from fsdpdoctor.simulate.engine.step import Step
from fsdpdoctor.simulate.plans.change_step import backward_order, forward_order
from fsdpdoctor.simulate.plans.plan import Plan

REPLACES = "# instead of your own fully_shard calls:"
"""First line of code that does not come after sharding but is the sharding."""


def settings(plan: Plan, step: Step) -> dict[str, Any]:
    """What a plan comes to for a model, every unit and list by name.

    `step` is the step as the plan makes it. Only what the plan changes is there.
    """
    changes = plan.changes
    regroups = {"merge", "split_root", "wrap"} & set(changes)
    names = [u.fqn for u in step.units]
    units: dict[str, dict[str, Any]] = {}
    for unit in step.units:
        said: dict[str, Any] = {}
        if "reshard_after_forward" in changes or regroups:
            said["reshard_after_forward"] = unit.reshard_after_forward
        if {"forward_prefetch", "forward_prefetch_of"} & set(changes):
            said["forward_prefetch"] = [names[t] for t in unit.forward_prefetch]
        if {"backward_prefetch", "backward_prefetch_of"} & set(changes):
            said["backward_prefetch"] = [names[t] for t in unit.backward_prefetch]
        units[unit.fqn] = said
    result: dict[str, Any] = {"units": units}
    if regroups:
        result["groups"] = [
            list(module_names(u.fqn)) for u in step.units if u.fqn != ROOT
        ]
    if "replicate" in changes:
        result["mesh"] = {"replicate": step.mesh.replicate, "shard": step.mesh.shard}
    for name in (
        "param_dtype",
        "reduce_dtype",
        "unshard_async_op",
        "separate_reduce_scatter_group",
        "max_input_buffers",
        "accumulation",
    ):
        if name in changes:
            result[name] = changes[name]
    if "accumulation" in changes:
        result["micro_batches"] = len(step.micro_batches)
    return result


def code(plan: Plan, step: Step) -> str:
    """The lines for a plan. `step` is the step as the plan makes it."""
    lines = [
        *_sharding(plan, step),
        *_policies(plan, step),
        *prefetch_lists(plan, step),
        *switches(plan),
        *accumulation_flags(plan),
    ]
    return "\n".join(lines)


def submodule(name: str) -> str:
    """The expression for a module by its path."""
    return f'model.get_submodule("{name}")' if name else "model"


def _sharding(plan: Plan, step: Step) -> Iterator[str]:
    """Units and everything that is an argument of `fully_shard`."""
    changes = plan.changes
    regroups = {"merge", "split_root", "wrap"} & set(changes)
    sizes = [
        size
        for size in plan.reshard_after_forward.values()
        if not isinstance(size, bool)
    ]
    if not regroups and not sizes and "replicate" not in changes:
        if "param_dtype" in changes or "reduce_dtype" in changes:
            yield _policy_comment(step)
        return
    yield REPLACES
    yield "from torch.distributed.fsdp import fully_shard"
    arguments: list[str] = []
    if "replicate" in changes:
        yield "from torch.distributed.device_mesh import init_device_mesh"
        shape = (step.mesh.replicate, step.mesh.shard)
        device = "cpu" if step.blocking else "cuda"
        yield (
            f'mesh = init_device_mesh("{device}", {shape}, '
            'mesh_dim_names=("replicate", "shard"))'
        )
        arguments.append("mesh=mesh")
    # Children before parents: FSDP2 takes the parameters that are not yet taken.
    for unit in reversed(step.units):
        if unit.fqn == ROOT:
            continue
        given = list(arguments)
        if unit.reshard_after_forward is not True:
            given.append(f"reshard_after_forward={unit.reshard_after_forward}")
        names = module_names(unit.fqn)
        what = ", ".join(submodule(name) for name in names)
        if len(names) > 1:
            what = f"[{what}]"
        yield f"fully_shard({', '.join([what, *given])})"
    yield f"fully_shard({', '.join(['model', *arguments])})"


def _policy_comment(step: Step) -> str:
    unit = step.units[-1]
    return (
        "# give every fully_shard call this mp_policy: MixedPrecisionPolicy("
        f"param_dtype=torch.{unit.param_dtype or unit.orig_dtype}, "
        f"reduce_dtype=torch.{unit.reduce_dtype or unit.param_dtype})"
    )


def _policies(plan: Plan, step: Step) -> Iterator[str]:
    """`set_reshard_after_forward` knows True and False; integers are sharding."""
    policies = plan.reshard_after_forward
    if not policies or not all(isinstance(size, bool) for size in policies.values()):
        return
    if {"merge", "split_root", "wrap", "replicate"} & set(plan.changes):
        return  # said to fully_shard already
    roots = set(step.root.units)
    for wanted in (True, False):
        names = [
            name
            for at, unit in enumerate(step.units)
            if (unit.fqn in policies or at not in roots)
            and policies.get(unit.fqn, policies.get("*")) is wanted
            for name in module_names(unit.fqn)[:1]
        ]
        if names:
            yield f"for name in {name_list(names)}:"
            yield (
                "    model.get_submodule(name).set_reshard_after_forward("
                f"{wanted}, recurse=False)"
            )


def name_list(names: Sequence[str]) -> str:
    """A tuple of names, or what makes it where they only count up."""
    if len(names) > 2:
        heads = {name.rpartition(".")[0] for name in names}
        tails = [name.rpartition(".")[2] for name in names]
        if len(heads) == 1 and all(tail.isdecimal() for tail in tails):
            counts = [int(tail) for tail in tails]
            step = counts[1] - counts[0]
            if step and counts == list(
                range(counts[0], counts[-1] + (1 if step > 0 else -1), step)
            ):
                head = heads.pop()
                prefix = f"{head}." if head else ""
                first, end = counts[0], counts[-1] + (1 if step > 0 else -1)
                run = f"{first}, {end}" if step == 1 else f"{first}, {end}, {step}"
                return f'[f"{prefix}{{i}}" for i in range({run})]'
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def prefetch_lists(plan: Plan, step: Step) -> Iterator[str]:
    """Explicit lists, in both directions."""
    for direction, depth, each, order in (
        ("forward", plan.forward_prefetch, plan.forward_prefetch_of, forward_order),
        ("backward", plan.backward_prefetch, plan.backward_prefetch_of, backward_order),
    ):
        if depth is None and not each:
            continue
        yield from _lists(direction, depth, each, step, order(step))


def _lists(
    direction: str,
    depth: int | None,
    each: Mapping[str, int],
    step: Step,
    order: Sequence[int],
) -> Iterator[str]:
    names = [module_names(step.units[u].fqn)[0] for u in order]
    call = f"set_modules_to_{direction}_prefetch"
    yield f"units = [model.get_submodule(name) for name in {_root_first(names)}]"
    if each:
        ahead = [each.get(step.units[u].fqn, depth) for u in order]
        if any(count is None for count in ahead):
            for at, count in enumerate(ahead):
                if count is not None:
                    end = at + 1 + count
                    yield f"units[{at}].{call}(units[{at + 1}:{end}])"
            return
        yield f"for i, ahead in enumerate({ahead}):"
        yield f"    units[i].{call}(units[i + 1 : i + 1 + ahead])"
        return
    yield "for i, unit in enumerate(units):"
    yield f"    unit.{call}(units[i + 1 : i + 1 + {depth}])"


def _root_first(names: Sequence[str]) -> str:
    """`""` is the root, for which get_submodule returns the model itself."""
    if len(names) > 3 and names[0] == "":
        rest = name_list(names[1:])
        if rest.startswith("[f"):
            return f'["", *{rest}]'
    return name_list(names)


def switches(plan: Plan) -> Iterator[str]:
    """What is set once on the root."""
    if plan.unshard_async_op is not None:
        yield f"model._set_unshard_async_op({plan.unshard_async_op})"
    if plan.separate_reduce_scatter_group is not None:
        yield (
            "model.set_separate_reduce_scatter_group("
            f"{plan.separate_reduce_scatter_group})"
        )
    if plan.max_input_buffers is not None:
        yield (f"model.set_reduce_scatter_max_input_buffers({plan.max_input_buffers})")


def accumulation_flags(plan: Plan) -> Iterator[str]:
    """What is set anew before each micro-batch."""
    if plan.accumulation is None:
        return
    last = "True" if plan.accumulation == "every" else "last"
    yield "def before_micro_batch(last):  # call it before each forward"
    yield f"    model.set_requires_gradient_sync({last})"
    if plan.accumulation == "keep":
        yield "    model.set_reshard_after_backward(last)"
        yield "    model.set_is_last_backward(last)"
