"""A plan where Accelerate shards: keys of its file, and what goes around `prepare`.

`prepare` makes units of the blocks that it is told, of the embedding, and of the last
norm with the head; what is sharded already it leaves as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.quoting import quoted
from fsdpdoctor.changes.sharding_code import (
    Arguments,
    dimensions,
    mixed_precision,
    shard_calls,
)
from fsdpdoctor.changes.snippet import (
    Snippet,
    inner,
    own_units,
    settings,
    snippet,
    uniform,
)
from fsdpdoctor.changes.unit_tree import UnitTree
from fsdpdoctor.schema import BlockSpec

VERSION = "Accelerate 1.15"

_FILE = f"in the file of accelerate launch --config_file ({VERSION})"

_BEFORE = (
    f"before accelerator.prepare(model) ({VERSION}; build the optimizer after this), "
    "or before trainer.train() with trainer.accelerator and trainer.model"
)

_AFTER = (
    "after model = accelerator.prepare(model); with a Trainer, in on_train_begin of a "
    "TrainerCallback"
)


def accelerate(
    plan: Plan, before: UnitTree, after: UnitTree, blocks: Sequence[BlockSpec]
) -> Iterator[Snippet]:
    """Keys where there are some, Python before or after `prepare` where not."""
    keyed = _keyed(plan, before, after)
    wrapped = _wrapped(plan, before, after, blocks)
    ours = own_units(before, after) and not wrapped
    yield from snippet(_FILE, _keys(plan, before, after, keyed, wrapped, ours))
    yield from snippet(_BEFORE, _before(plan, before, after, ours))
    yield from snippet(_AFTER, settings(plan, after if keyed else before, after))
    yield from _accumulation(plan)


def _keyed(plan: Plan, before: UnitTree, after: UnitTree) -> bool:
    """Whether its key says the policy. `true` leaves the head's units gathered."""
    asked = bool(plan.reshard_after_forward) and not own_units(before, after)
    return asked and uniform(before, after) is False


def _wrapped(
    plan: Plan, before: UnitTree, after: UnitTree, blocks: Sequence[BlockSpec]
) -> list[str]:
    """The classes whose modules are to be units, where only their number grows."""
    lost = [unit for unit in inner(before) if unit.fqn not in after]
    if plan.wrap is None or lost:
        return []
    names = {unit.fqn for unit in inner(after)}
    found: list[str] = []
    for block in blocks:
        prefix = f"{block.container}." if block.container else ""
        mine = {f"{prefix}{at}" for at in range(block.count)}
        if mine <= names:
            names -= mine
            found.append(block.module_class)
    new = {unit.fqn for unit in inner(after) if unit.fqn not in before}
    return list(dict.fromkeys(found)) if not names & new else []


def _keys(
    plan: Plan,
    before: UnitTree,
    after: UnitTree,
    keyed: bool,
    wrapped: Sequence[str],
    ours: bool,
) -> Iterator[str]:
    keys: list[str] = []
    if wrapped:
        classes = ",".join(wrapped)
        text = classes if classes.replace(",", "").isidentifier() else quoted(classes)
        keys.append("fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP")
        keys.append(f"fsdp_transformer_layer_cls_to_wrap: {text}")
    elif ours and _all_by_hand(before, after):
        keys.append("fsdp_auto_wrap_policy: NO_WRAP")
    if keyed:
        keys.append("fsdp_reshard_after_forward: false")
    if keys:
        yield "fsdp_config:"
        yield from (f"  {key}" for key in keys)
    if plan.replicate is not None:
        sizes = [length for _, length in dimensions(after.units[0].mesh)]
        replicate, shard = (1, sizes[-1]) if len(sizes) < 2 else sizes[:2]
        yield "parallelism_config:"
        yield f"  parallelism_config_dp_replicate_size: {replicate}"
        yield f"  parallelism_config_dp_shard_size: {shard}"


def _all_by_hand(before: UnitTree, after: UnitTree) -> bool:
    """Whether no unit may be left to `prepare`: it looks for classes by their names,
    which sharded modules no longer have.
    """
    told = {unit.fqn: unit.reshard_after_forward for unit in before.units}
    return any(unit.fqn not in after for unit in inner(before)) or any(
        type(unit.reshard_after_forward) is int
        and told.get(unit.fqn) != unit.reshard_after_forward
        for unit in inner(after)
    )


def _before(plan: Plan, before: UnitTree, after: UnitTree, ours: bool) -> Iterator[str]:
    policy = None
    if plan.param_dtype is not None or plan.reduce_dtype is not None:
        policy = next(filter(None, map(mixed_precision, after.units)), None)
    if policy is None and not ours:
        return
    if policy is not None:
        yield "import torch"
    names = ["MixedPrecisionPolicy", *["fully_shard"] * ours]
    yield f"from torch.distributed.fsdp import {', '.join(names)}"
    yield ""
    yield "plugin = accelerator.state.fsdp_plugin"
    if policy is not None:
        yield f"plugin.mixed_precision_policy = {policy}"
    if not ours:
        return
    units = inner(after)
    if not _all_by_hand(before, after):
        units = [unit for unit in units if unit.fqn not in before]
    yield "plugin.cpu_ram_efficient_loading = False  # it takes a plain model"
    yield "config = {"
    yield '    "mp_policy": plugin.mixed_precision_policy or MixedPrecisionPolicy(),'
    yield '    "offload_policy": plugin.cpu_offload,'
    yield "}"
    yield 'mesh = getattr(accelerator, "torch_device_mesh", None)'
    yield "if mesh is not None:"
    yield "    names = tuple(accelerator.parallelism_config.fsdp_dim_names)"
    yield '    config["mesh"] = mesh[names]'
    yield from shard_calls(units, Arguments(), config=True)


def _accumulation(plan: Plan) -> Iterator[Snippet]:
    """`accumulate` sets FSDP2's flags by itself."""
    if plan.accumulation is None:
        return
    count = plan.micro_batches or "micro_batches"
    if plan.accumulation == "every":
        made = [
            "from accelerate.utils import GradientAccumulationPlugin",
            "",
            "accumulation = GradientAccumulationPlugin(",
            f"    num_steps={count}, sync_each_batch=True",
            ")",
            "accelerator = Accelerator(gradient_accumulation_plugin=accumulation)",
        ]
    else:
        made = [f"accelerator = Accelerator(gradient_accumulation_steps={count})"]
    made.append("# accelerator.backward(loss) divides the loss by their number.")
    yield from snippet("where your Accelerator is made, with its own arguments", made)
    around = ["with accelerator.accumulate(model):"]
    if plan.accumulation == "keep":
        around.append("    last = accelerator.sync_gradients")
        around.append("    model.set_reshard_after_backward(last)")
        around.append("    model.set_is_last_backward(last)")
    around.append("    ...  # forward, backward, optimizer.step(), zero_grad()")
    yield from snippet("around each micro-batch", around)
