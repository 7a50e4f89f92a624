"""A plan's lines for what shards the user's model: torchtitan, Accelerate, Lightning.

Each text goes to one place and runs, or parses, there as it is. What FSDP2 is told
is the same in all of them; only who calls `fully_shard`, and when, differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsdpdoctor.changes.code import accumulation_flags, code, prefetch_lists, switches
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.sharding_code import (
    MESH_IMPORT,
    Arguments,
    arguments,
    dimensions,
    preamble,
    shard_calls,
)
from fsdpdoctor.changes.unit_tree import TreeUnit, UnitTree
from fsdpdoctor.schema import BlockSpec

DIALECTS = ("fully_shard", "torchtitan", "accelerate", "lightning")
"""What `whatif --code` knows."""

SHARDING = {
    "merge",
    "split_root",
    "wrap",
    "replicate",
    "reshard_after_forward",
    "param_dtype",
    "reduce_dtype",
}
"""Changes that are made where the model is sharded; the others come after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """Lines, and where they go."""

    where: str
    text: str


def snippets(
    dialect: str,
    plan: Plan,
    before: UnitTree,
    after: UnitTree,
    blocks: Sequence[BlockSpec] = (),
) -> list[Snippet]:
    """A plan in one of DIALECTS. `after` are the units as the plan makes them."""
    if dialect == "torchtitan":
        found = [*_torchtitan(plan, after)]
    elif dialect == "accelerate":
        found = [*_accelerate(plan, after, blocks)]
    elif dialect == "lightning":
        found = [*_lightning(plan, after)]
    else:
        text = code(plan, before, after)
        return [Snippet(where="after sharding", text=text)] if text else []
    flags = "\n".join(accumulation_flags(plan, after))
    if flags:
        found.append(Snippet(where="in the training loop", text=flags))
    return found


def code_in(
    dialect: str,
    plan: Plan,
    before: UnitTree,
    after: UnitTree,
    blocks: Sequence[BlockSpec] = (),
) -> str:
    """All snippets in one text; a comment says where each goes."""
    found = snippets(dialect, plan, before, after, blocks)
    if dialect == "fully_shard":
        return "".join(snippet.text for snippet in found)
    return "\n\n".join(f"# {snippet.where}:\n{snippet.text}" for snippet in found)


# -- what they share


def _after(plan: Plan, tree: UnitTree) -> list[str]:
    return [*switches(plan, tree), *prefetch_lists(plan, tree)]


def _indented(lines: Iterable[str]) -> list[str]:
    split = [line for text in lines for line in text.split("\n")]
    return [f"    {line}" if line else "" for line in split]


def _shard_all(tree: UnitTree, known: Arguments) -> Iterator[str]:
    """`fully_shard` for every unit and the root; `config` goes to all of them."""
    yield from shard_calls(tree.units, known, config=True)
    if tree.root is None:
        yield "fully_shard(model, **config)"


def _own_dtypes(tree: UnitTree) -> UnitTree:
    """Units without the one policy that all of them have: the trainer gives it."""
    alike = {(unit.param_dtype, unit.reduce_dtype) for unit in tree.units}
    if len(alike) > 1:
        return tree
    return _left_out(tree, "param_dtype", "reduce_dtype")


def _left_out(tree: UnitTree, *settings: str) -> UnitTree:
    """Units without what the trainer gives them itself."""
    without: dict[str, Any] = dict.fromkeys(settings)
    return replace(tree, units=tuple(replace(one, **without) for one in tree.units))


# -- torchtitan


def _torchtitan(plan: Plan, tree: UnitTree) -> Iterator[Snippet]:
    """Its own `apply_fsdp`, whose arguments its caller already gives."""
    own = [
        f"{name} = torch.{value}"
        for name in ("param_dtype", "reduce_dtype")
        if (value := getattr(plan, name)) is not None
    ]
    mine = _own_dtypes(_left_out(tree, "mesh"))
    known = arguments(_left_out(mine, "offload").units, mine)
    body = [
        '"""Each unit by name; further arguments of the caller change nothing."""',
        *own,
        "policy = MixedPrecisionPolicy(param_dtype, reduce_dtype)",
        'config = {"mesh": dp_mesh, "mp_policy": policy}',
        "if cpu_offload:",
        '    config["offload_policy"] = CPUOffloadPolicy()',
        *_shard_all(mine, known),
        *_after(plan, tree),
    ]
    lines = [
        *["import torch"] * bool(own or known.imports),
        "from torch.distributed.fsdp import (",
        "    CPUOffloadPolicy,",
        "    MixedPrecisionPolicy,",
        "    fully_shard,",
        ")",
        "",
        "def apply_fsdp(",
        "    model, dp_mesh, param_dtype, reduce_dtype, cpu_offload=False, **others",
        "):",
        *_indented(body),
    ]
    yield Snippet(
        where="in place of apply_fsdp, in the model's parallelize.py",
        text="\n".join(lines),
    )
    if plan.replicate is not None:
        replicate, shard = _degrees(tree)
        degrees = [
            "[parallelism]",
            f"data_parallel_replicate_degree = {replicate}",
            f"data_parallel_shard_degree = {shard}",
        ]
        yield Snippet(where="in the job's .toml", text="\n".join(degrees))


def _degrees(tree: UnitTree) -> tuple[int, int]:
    """Replicas, and the ranks that shard."""
    sizes = [length for _, length in dimensions(tree.units[0].mesh)]
    return (1, sizes[-1]) if len(sizes) < 2 else (sizes[0], sizes[1])


# -- Accelerate


def _accelerate(
    plan: Plan, tree: UnitTree, blocks: Sequence[BlockSpec]
) -> Iterator[Snippet]:
    """Keys where there are some, Python before or after `prepare` where not."""
    if SHARDING & set(plan.changes):
        keys = _keys(plan, tree, blocks)
        if keys is not None:
            yield Snippet(
                where="in the file of accelerate launch --config_file",
                text="\n".join(keys),
            )
        else:
            yield Snippet(
                where="before accelerator.prepare(model), which leaves a sharded model "
                "as it is; build the optimizer after this",
                text="\n".join(_before_prepare(tree)),
            )
    after = _after(plan, tree)
    if after:
        where = "after model = accelerator.prepare(model)"
        yield Snippet(where=where, text="\n".join(after))


def _keys(plan: Plan, tree: UnitTree, blocks: Sequence[BlockSpec]) -> list[str] | None:
    """The YAML, None where its keys cannot say it.

    Accelerate shards the blocks of a class and the root, all with one policy.
    """
    known = {"wrap", "reshard_after_forward", "replicate"}
    inner = [unit for unit in tree.units if unit.modules != ("",)]
    policies = {unit.reshard_after_forward for unit in tree.units}
    block = _block_class(inner, blocks)
    only_keys = SHARDING & set(plan.changes) <= known
    if not only_keys or block is None or policies not in ({True}, {False}):
        return None
    name = block if block.isidentifier() else json.dumps(block)
    lines = [
        "distributed_type: FSDP",
        "fsdp_config:",
        "  fsdp_version: 2",
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        f"  fsdp_transformer_layer_cls_to_wrap: {name}",
        f"  fsdp_reshard_after_forward: {str(policies.pop()).lower()}",
    ]
    if plan.replicate is not None:
        replicate, shard = _degrees(tree)
        lines += [
            "parallelism_config:",
            f"  parallelism_config_dp_replicate_size: {replicate}",
            f"  parallelism_config_dp_shard_size: {shard}",
        ]
    return lines


def _block_class(inner: Sequence[TreeUnit], blocks: Sequence[BlockSpec]) -> str | None:
    """The class whose modules are just these units."""
    names = {unit.fqn for unit in inner}
    for block in blocks:
        prefix = f"{block.container}." if block.container else ""
        if names == {f"{prefix}{at}" for at in range(block.count)}:
            return block.module_class
    return None


def _before_prepare(tree: UnitTree) -> Iterator[str]:
    known = arguments(tree.units, tree)
    yield from preamble(known, "fully_shard")
    yield from known.before
    yield f"config = {{{', '.join(known.config)}}}"
    yield from _shard_all(tree, known)


# -- Lightning


def _lightning(plan: Plan, tree: UnitTree) -> Iterator[Snippet]:
    """`configure_model`, which `ModelParallelStrategy` calls with its mesh made."""
    given = tree if plan.replicate is not None else _left_out(tree, "mesh")
    known = arguments(given.units, given)
    config = known.config
    if not any(entry.startswith('"mesh"') for entry in config):
        config = ('"mesh": self.device_mesh["data_parallel"]', *config)
    imports = preamble(known, "FSDPModule", "fully_shard")
    inner = [line for line in imports if line not in ("import torch", MESH_IMPORT)]
    body = [
        *inner,
        *[MESH_IMPORT] * (MESH_IMPORT in imports),
        "model = self.model  # the module that was recorded",
        "if isinstance(model, FSDPModule):",
        "    return  # Lightning calls this once for each stage",
        *known.before,
        f"config = {{{', '.join(config)}}}",
        *_shard_all(given, known),
        *_after(plan, given),
    ]
    ranks = tree.world_size
    lines = [
        *["import torch", ""] * ("import torch" in imports),
        "# With Trainer(strategy=ModelParallelStrategy(",
        f"#     data_parallel_size={ranks}, tensor_parallel_size=1))",
        "def configure_model(self):",
        *_indented(body),
    ]
    yield Snippet(where="in your LightningModule", text="\n".join(lines))
