"""A plan where torchtitan shards: its flags, and what goes around its own call.

Its `apply_fsdp_to_decoder` does more than shard (it turns off the division of
gradients, leaves inputs uncast, gives experts their own mesh), so it stays.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.changes.code import accumulation_flags
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.quoting import name_list, quoted
from fsdpdoctor.changes.sharding_code import dimensions
from fsdpdoctor.changes.snippet import (
    Snippet,
    indented,
    inner,
    own_units,
    settings,
    snippet,
    uniform,
)
from fsdpdoctor.changes.unit_tree import UnitTree

VERSION = "torchtitan 0.3"

_CALL = "its call of apply_fsdp_to_decoder, in the model's parallelize.py"

_PARAM_DTYPES = ("bfloat16", "float32")
_REDUCE_DTYPES = ("float32",)
"""What its flags take."""


def torchtitan(plan: Plan, before: UnitTree, after: UnitTree) -> Iterator[Snippet]:
    """Flags where there are some, Python before and after its call where not."""
    yield from snippet(f"on the command line of {VERSION}", _flags(plan, before, after))
    stands = own_units(before, after)
    dtypes = _dtypes(plan)
    if stands or dtypes:
        yield from snippet(
            f"before {_CALL} ({VERSION})", _stand_in(before, after, dtypes)
        )
    told = plan.reshard_after_forward and not stands
    by_flag = told and uniform(before, after) is not None
    yield from snippet(
        f"after {_CALL} ({VERSION})",
        settings(plan, after if by_flag else before, after),
    )
    yield from snippet(
        "in a Trainer of your own, for each of self.model_parts before each "
        f"self.forward_backward_step ({VERSION})",
        accumulation_flags(plan, after),
    )


def _flags(plan: Plan, before: UnitTree, after: UnitTree) -> Iterator[str]:
    if plan.reshard_after_forward and not own_units(before, after):
        policy = uniform(before, after)
        if policy is not None:
            word = "always" if policy else "never"
            yield f"--parallelism.fsdp_reshard_after_forward {word}"
    if plan.param_dtype in _PARAM_DTYPES:
        yield f"--training.mixed_precision_param {plan.param_dtype}"
    if plan.reduce_dtype in _REDUCE_DTYPES:
        yield f"--training.mixed_precision_reduce {plan.reduce_dtype}"
    if plan.replicate is not None:
        sizes = [length for _, length in dimensions(after.units[0].mesh)]
        replicate, shard = (1, sizes[-1]) if len(sizes) < 2 else sizes[:2]
        yield f"--parallelism.data_parallel_replicate_degree {replicate}"
        yield f"--parallelism.data_parallel_shard_degree {shard}"


def _dtypes(plan: Plan) -> list[str]:
    """Of a policy, where no flag takes them."""
    return [
        f"{name}=torch.{dtype}"
        for name, dtype, taken in (
            ("param_dtype", plan.param_dtype, _PARAM_DTYPES),
            ("reduce_dtype", plan.reduce_dtype, _REDUCE_DTYPES),
        )
        if dtype is not None and dtype not in taken
    ]


def _stand_in(before: UnitTree, after: UnitTree, dtypes: list[str]) -> Iterator[str]:
    """What stands for `fully_shard` while torchtitan calls it."""
    if dtypes:
        yield "from dataclasses import replace"
        yield "import torch"
    yield "import torchtitan.distributed.fsdp as sharding"
    yield ""
    yield "def as_planned(model, fully_shard):"
    yield from indented(_body(before, after, dtypes))
    yield ""
    yield "sharding.fully_shard = as_planned(model, sharding.fully_shard)"


def _body(before: UnitTree, after: UnitTree, dtypes: list[str]) -> Iterator[str]:
    new = [unit for unit in inner(after) if unit.fqn not in before]
    new.sort(key=lambda unit: -unit.modules[0].count("."))
    gone = [unit.modules[0] for unit in inner(before) if unit.fqn not in after]
    was = {unit.fqn: unit.reshard_after_forward for unit in before.units}
    told = [
        unit
        for unit in after.units
        if type(unit.reshard_after_forward) is int
        and was.get(unit.fqn, unit.reshard_after_forward) != unit.reshard_after_forward
    ]
    yield '"""Stands for fully_shard until the model itself is sharded."""'
    yield "there = dict(model.named_modules())"
    if new:
        yield "made = ["
        for unit in new:
            names = ", ".join(map(quoted, unit.modules))
            yield f"    ([{names}], {unit.reshard_after_forward}),"
        yield "]"
    yield f"gone = {name_list(gone)}"
    yield "gone = [there[name] for name in gone if name in there]"
    yield "told = {"
    for unit in told:
        yield f"    {quoted(unit.modules[0])}: {unit.reshard_after_forward},"
    yield "}"
    yield "told = {there[name]: n for name, n in told.items() if name in there}"
    yield "def shard(module, **config):"
    yield from indented(_shard(bool(new), dtypes))
    yield "return shard"


def _shard(new: bool, dtypes: list[str]) -> Iterator[str]:
    if dtypes:
        given = ", ".join(dtypes)
        yield f'config["mp_policy"] = replace(config["mp_policy"], {given})'
    if new:
        yield "while made:"
        yield "    names, reshard = made.pop(0)"
        yield "    unit = [there[name] for name in names if name in there]"
        yield "    if unit:"
        yield '        own = {**config, "reshard_after_forward": reshard}'
        yield "        fully_shard(unit, **own)"
    yield "first = module[0] if isinstance(module, list) else module"
    yield "if first in told:"
    yield '    config["reshard_after_forward"] = told[first]'
    yield "if not any(first is one for one in gone):"
    yield "    fully_shard(module, **config)"
    yield "if module is model:"
    yield "    sharding.fully_shard = fully_shard"
