"""The one writer of code: the lines that make a plan true, for the user's modules.

They run as pasted and expect `model`, the sharded model, before its first forward.
What must be said to `fully_shard` itself are calls in place of, or between, the
user's own, marked so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.quoting import in_comment, name_list, submodule
from fsdpdoctor.changes.sharding_code import mixed_precision, sharding_code
from fsdpdoctor.changes.unit_tree import TreeUnit, UnitTree, first_path

MODEL = "# `model` is your root module, the one that fully_shard() was called on last."

_SEVERAL = "# `model` is the module that holds all the roots that you shard."


def code(plan: Plan, before: UnitTree, after: UnitTree) -> str:
    """The lines for a plan. `after` are the units as the plan makes them."""
    settings = [
        *policies(plan, before, after),
        *switches(plan, after),
        *prefetch_lists(plan, after),
    ]
    # What is set on sharded modules comes after the last call, so then all are ours.
    sharding = list(_sharding(plan, before, after, anew=bool(settings)))
    if settings and not sharding:
        settings.insert(0, what_model_is(after))
    return "\n".join([*sharding, *settings, *accumulation_flags(plan, after)])


def what_model_is(tree: UnitTree) -> str:
    """The comment that says which module `model` has to be."""
    if tree.called is not None:
        return f"# `model` is your {in_comment(tree.called)}."
    paths = tree.root_paths
    return MODEL if paths == ("",) else _SEVERAL


def _sharding(
    plan: Plan, before: UnitTree, after: UnitTree, *, anew: bool
) -> Iterator[str]:
    """Units and everything that is an argument of `fully_shard`."""
    changes = plan.changes
    sizes = [p for p in plan.reshard_after_forward.values() if type(p) is int]
    regrouped = not same_units(before, after)
    dtypes = bool({"param_dtype", "reduce_dtype"} & set(changes))
    if regrouped or sizes or "replicate" in changes:
        anew = anew or bool(sizes) or dtypes or "replicate" in changes
        yield from sharding_code(before, after, anew=anew)
    elif dtypes:
        yield from _policy(after)


def _policy(tree: UnitTree) -> Iterator[str]:
    """One policy for every unit; the calls that take it are the user's own."""
    policy = next(filter(None, map(mixed_precision, tree.units)), None)
    if policy is None:
        return
    arguments = policy.partition("(")[2].rstrip(")")
    yield "import torch"
    yield "from torch.distributed.fsdp import MixedPrecisionPolicy"
    yield ""
    yield "policy = MixedPrecisionPolicy("
    yield f"    {arguments}"
    yield ")"
    yield "# Then fully_shard(module, mp_policy=policy), no autocast."


def policies(plan: Plan, before: UnitTree, after: UnitTree) -> Iterator[str]:
    """`set_reshard_after_forward` knows True and False; integers are sharding."""
    asked = plan.reshard_after_forward
    if not asked or any(type(size) is int for size in asked.values()):
        return
    if not same_units(before, after) or plan.replicate is not None:
        return  # said to fully_shard already
    yield from set_policies(before, after)


def same_units(before: UnitTree, after: UnitTree) -> bool:
    """Whether they are the same, whatever is told of them."""
    return [u.fqn for u in before.units] == [u.fqn for u in after.units]


def set_policies(before: UnitTree, after: UnitTree) -> Iterator[str]:
    """Of units that are there before and after."""
    told = {unit.fqn: unit.reshard_after_forward for unit in before.units}
    for wanted, called in ((False, "keep"), (True, "reshard")):
        units = [
            unit
            for unit in after.units
            if unit.reshard_after_forward is wanted
            and told.get(unit.fqn, wanted) is not wanted
        ]
        yield from _policies(units, wanted, called)


def _policies(units: Sequence[TreeUnit], wanted: bool, called: str) -> Iterator[str]:
    call = f"set_reshard_after_forward({wanted}, recurse=False)"
    paths = list(dict.fromkeys(unit.modules[0] for unit in units))
    if names := [path for path in paths if path]:
        yield f"{called} = {name_list(names)}"
        yield f"for name in {called}:"
        yield "    unit = model.get_submodule(name)"
        yield f"    unit.{call}"
    if "" in paths:
        yield f"model.{call}"


def prefetch_lists(plan: Plan, tree: UnitTree) -> Iterator[str]:
    """Explicit lists, in both directions, of each root's units."""
    for phase, depth, each in (
        ("forward", plan.forward_prefetch, plan.forward_prefetch_of),
        ("backward", plan.backward_prefetch, plan.backward_prefetch_of),
    ):
        call = f"set_modules_to_{phase}_prefetch"
        if depth is None and each and not any(each.values()):
            yield f"listed = {name_list([first_path(fqn) for fqn in each])}"
            yield "for name in listed:"
            yield f"    model.get_submodule(name).{call}([])"
        elif depth is not None or each:
            for one in tree.trees:
                yield from _chain(one, phase, depth, each)


def _chain(
    tree: UnitTree, phase: str, depth: int | None, each: Mapping[str, int]
) -> Iterator[str]:
    """The lists of one root's units, each of which names those that run next."""
    call = f"set_modules_to_{phase}_prefetch"
    order = tree.order(phase)
    # Two groups of parameters of one module have their lists together.
    ahead = {unit.modules[0]: each.get(unit.fqn, depth) for unit in order}
    paths = list(ahead)
    if len(paths) < 2 or all(count is None for count in ahead.values()):
        return
    yield f"# Units in the order in which their {phase}s ran."
    yield f"order = {name_list([path for path in paths if path])}"
    start = "[model]" if "" in paths else "[]"
    yield f"units = {start} + [model.get_submodule(name) for name in order]"
    if paths[0] != "" and "" in paths:
        raise ValueError(f"the root is not the first unit of {paths}")
    if None in ahead.values():
        for at, count in enumerate(ahead.values()):
            if count is not None:
                yield f"units[{at}].{call}(units[{at + 1}:{at + 1 + count}])"
    elif each:
        yield f"for i, ahead in enumerate({list(ahead.values())}):"
        yield f"    units[i].{call}(units[i + 1 : i + 1 + ahead])"
    elif depth == 1 and not getattr(order[-1], f"{phase}_prefetch"):
        yield "for unit, following in zip(units, units[1:]):"
        yield f"    unit.{call}([following])"
    else:
        yield "for i, unit in enumerate(units):"
        yield f"    unit.{call}(units[i + 1 : i + {1 + (depth or 0)}])"


def switches(plan: Plan, tree: UnitTree) -> Iterator[str]:
    """What is set once on each root."""
    calls = [
        f"{method}({value})"
        for method, value in (
            ("_set_unshard_async_op", plan.unshard_async_op),
            (
                "set_separate_reduce_scatter_group",
                plan.separate_reduce_scatter_group,
            ),
            ("set_reduce_scatter_max_input_buffers", plan.max_input_buffers),
        )
        if value is not None
    ]
    for call in calls:
        yield from on_roots(tree, call)


def on_roots(tree: UnitTree, call: str) -> list[str]:
    """A method call on each root; a model of several roots is itself none."""
    paths = tree.root_paths or ("",)
    if len(paths) < 2:
        return [f"{submodule(path)}.{call}" for path in paths]
    return [
        f"for name in {name_list(paths)}:",
        f"    model.get_submodule(name).{call}",
    ]


def accumulation_flags(plan: Plan, tree: UnitTree) -> list[str]:
    """What is set anew before each micro-batch."""
    if plan.accumulation is None:
        return []
    count = "" if plan.micro_batches is None else f"={plan.micro_batches}"
    if plan.accumulation == "every":
        return sync_on_last(tree, count, "set_requires_gradient_sync(True)")
    calls = ["set_requires_gradient_sync(last)"]
    if plan.accumulation == "keep":
        calls += ["set_reshard_after_backward(last)", "set_is_last_backward(last)"]
    return sync_on_last(tree, count, *calls)


def sync_on_last(tree: UnitTree, count: str, *calls: str) -> list[str]:
    """A function for the training loop. `count` is the default of micro-batches."""
    last = "micro_batch == micro_batches - 1"
    lines = [
        *([] if tree.called is None else [what_model_is(tree)]),
        f"def sync_on_last(model, micro_batch, micro_batches{count}):",
        '    """Call with the root module before each micro-batch\'s forward."""',
    ]
    if len(calls) == 1:
        calls = (calls[0].replace("last", last),)
    else:
        lines.append(f"    last = {last}")
    for call in calls:
        lines += [f"    {line}" for line in on_roots(tree, call)]
    return lines
