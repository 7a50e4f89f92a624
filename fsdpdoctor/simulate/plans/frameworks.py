"""A plan's lines for what shards the user's model: torchtitan, Accelerate, Lightning.

Each text goes to one place and runs, or parses, there as it is. What FSDP2 is told
is the same in all of them; only who calls `fully_shard`, and when, differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from fsdpdoctor.plan_file import module_names
from fsdpdoctor.schema import ROOT
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.step import Step, Unit
from fsdpdoctor.simulate.plans.code import (
    accumulation_flags,
    code,
    name_list,
    prefetch_lists,
    submodule,
    switches,
)
from fsdpdoctor.simulate.plans.plan import Plan

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
    dialect: str, plan: Plan, step: Step, constraints: RunConstraints
) -> list[Snippet]:
    """A plan in one of DIALECTS. `step` is the step as the plan makes it."""
    if dialect == "torchtitan":
        found = [*_torchtitan(plan, step)]
    elif dialect == "accelerate":
        found = [*_accelerate(plan, step, constraints)]
    elif dialect == "lightning":
        found = [*_lightning(plan, step)]
    else:
        text = code(plan, step)
        return [Snippet(where="after sharding", text=text)] if text else []
    flags = "\n".join(accumulation_flags(plan))
    if flags:
        found.append(Snippet(where="in the training loop", text=flags))
    return found


def code_in(dialect: str, plan: Plan, step: Step, constraints: RunConstraints) -> str:
    """All snippets in one text; a comment says where each goes."""
    found = snippets(dialect, plan, step, constraints)
    if dialect == "fully_shard":
        return "".join(snippet.text for snippet in found)
    return "\n\n".join(f"# {snippet.where}:\n{snippet.text}" for snippet in found)


# -- what they share


def _shard_all(step: Step) -> Iterator[str]:
    """`fully_shard` for every unit, children before parents; `config` goes to all."""
    inner = [unit for unit in reversed(step.units) if unit.fqn != ROOT]
    for _, alike in groupby(inner, key=_call):
        units = list(alike)
        names = [module_names(unit.fqn) for unit in units]
        policy = _policy(units[0])
        if len(names[0]) == 1 and len(units) > 1:
            yield f"for name in {name_list([name for (name,) in names])}:"
            yield f"    fully_shard(model.get_submodule(name), **config{policy})"
            continue
        for grouped in names:
            what = ", ".join(submodule(name) for name in grouped)
            what = f"[{what}]" if len(grouped) > 1 else what
            yield f"fully_shard({what}, **config{policy})"
    roots = [unit for unit in step.units if unit.fqn == ROOT]
    # FSDP2 keeps the root gathered unless it is told otherwise.
    told = [unit for unit in roots if unit.reshard_after_forward is not False]
    yield f"fully_shard(model, **config{''.join(map(_policy, told))})"


def _call(unit: Unit) -> tuple[bool, str]:
    return len(module_names(unit.fqn)) == 1, _policy(unit)


def _policy(unit: Unit) -> str:
    return f", reshard_after_forward={unit.reshard_after_forward}"


def _after(plan: Plan, step: Step) -> list[str]:
    return [*prefetch_lists(plan, step), *switches(plan)]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _mixed(step: Step) -> str | None:
    """The one mixed precision of all units; None: none, or several."""
    found = {(unit.param_dtype, unit.reduce_dtype) for unit in step.units}
    if len(found) > 1 or found == {(None, None)}:
        return None
    ((param, reduce),) = found
    given = [
        f"{name}=torch.{dtype}"
        for name, dtype in (("param_dtype", param), ("reduce_dtype", reduce))
        if dtype is not None
    ]
    return f"MixedPrecisionPolicy({', '.join(given)})"


def _replica_mesh(step: Step) -> list[str]:
    device = "cpu" if step.blocking else "cuda"
    shape = (step.mesh.replicate, step.mesh.shard)
    names = ("replicate", "shard")
    return [
        "from torch.distributed.device_mesh import init_device_mesh",
        f'mesh = init_device_mesh("{device}", {shape}, mesh_dim_names={names})',
    ]


# -- torchtitan


def _torchtitan(plan: Plan, step: Step) -> Iterator[Snippet]:
    """Its own `apply_fsdp`, whose arguments its caller already gives."""
    own = [
        f"{name} = torch.{value}"
        for name in ("param_dtype", "reduce_dtype")
        if (value := getattr(plan, name)) is not None
    ]
    body = [
        '"""Each unit by name; further arguments of the caller change nothing."""',
        *own,
        "policy = MixedPrecisionPolicy(param_dtype, reduce_dtype)",
        'config = {"mesh": dp_mesh, "mp_policy": policy}',
        "if cpu_offload:",
        '    config["offload_policy"] = CPUOffloadPolicy()',
        *_shard_all(step),
        *_after(plan, step),
    ]
    lines = [
        *["import torch"] * bool(own),
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
        degrees = [
            "[parallelism]",
            f"data_parallel_replicate_degree = {step.mesh.replicate}",
            f"data_parallel_shard_degree = {step.mesh.shard}",
        ]
        yield Snippet(where="in the job's .toml", text="\n".join(degrees))


# -- Accelerate


def _accelerate(
    plan: Plan, step: Step, constraints: RunConstraints
) -> Iterator[Snippet]:
    """Keys where there are some, Python before or after `prepare` where not."""
    if SHARDING & set(plan.changes):
        keys = _keys(plan, step, constraints)
        if keys is not None:
            yield Snippet(
                where="in the file of accelerate launch --config_file",
                text="\n".join(keys),
            )
        else:
            yield Snippet(
                where="before accelerator.prepare(model), which leaves a sharded model "
                "as it is; build the optimizer after this",
                text="\n".join(_before_prepare(plan, step)),
            )
    after = _after(plan, step)
    if after:
        where = "after model = accelerator.prepare(model)"
        yield Snippet(where=where, text="\n".join(after))


def _keys(plan: Plan, step: Step, constraints: RunConstraints) -> list[str] | None:
    """The YAML, None where its keys cannot say it.

    Accelerate shards the blocks of a class and the root, all with one policy.
    """
    known = {"wrap", "reshard_after_forward", "replicate"}
    inner = [unit for unit in step.units if unit.fqn != ROOT]
    policies = {unit.reshard_after_forward for unit in step.units}
    block = _block_class(inner, constraints)
    only_keys = SHARDING & set(plan.changes) <= known
    if not only_keys or block is None or policies not in ({True}, {False}):
        return None
    lines = [
        "distributed_type: FSDP",
        "fsdp_config:",
        "  fsdp_version: 2",
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        f"  fsdp_transformer_layer_cls_to_wrap: {block}",
        f"  fsdp_reshard_after_forward: {str(policies.pop()).lower()}",
    ]
    if plan.replicate is not None:
        lines += [
            "parallelism_config:",
            f"  parallelism_config_dp_replicate_size: {step.mesh.replicate}",
            f"  parallelism_config_dp_shard_size: {step.mesh.shard}",
        ]
    return lines


def _block_class(inner: Sequence[Unit], constraints: RunConstraints) -> str | None:
    """The class whose modules are just these units."""
    names = {unit.fqn for unit in inner}
    for block in constraints.blocks:
        prefix = f"{block.container}." if block.container else ""
        if names == {f"{prefix}{at}" for at in range(block.count)}:
            return block.module_class
    return None


def _before_prepare(plan: Plan, step: Step) -> Iterator[str]:
    mixed = _mixed(step)
    arguments = []
    if mixed is not None:
        yield "import torch"
        yield "from torch.distributed.fsdp import MixedPrecisionPolicy"
        arguments.append(f'"mp_policy": {mixed}')
    yield "from torch.distributed.fsdp import fully_shard"
    if plan.replicate is not None:
        yield from _replica_mesh(step)
        arguments.append('"mesh": mesh')
    yield f"config = {{{', '.join(arguments)}}}"
    yield from _shard_all(step)


# -- Lightning


def _lightning(plan: Plan, step: Step) -> Iterator[Snippet]:
    """`configure_model`, which `ModelParallelStrategy` calls with its mesh made."""
    mixed = _mixed(step)
    names = ["FSDPModule", *["MixedPrecisionPolicy"] * bool(mixed), "fully_shard"]
    mesh = 'self.device_mesh["data_parallel"]'
    body = [
        f"from torch.distributed.fsdp import {', '.join(names)}",
        "model = self.model  # the module that was recorded",
        "if isinstance(model, FSDPModule):",
        "    return  # Lightning calls this once for each stage",
    ]
    if plan.replicate is not None:
        body += _replica_mesh(step)
        mesh = "mesh"
    body.append(f'config = {{"mesh": {mesh}}}')
    if mixed is not None:
        body.append(f'config["mp_policy"] = {mixed}')
    body += [*_shard_all(step), *_after(plan, step)]
    ranks = step.mesh.world_size
    lines = [
        *["import torch", ""] * bool(mixed),
        "# With Trainer(strategy=ModelParallelStrategy(",
        f"#     data_parallel_size={ranks}, tensor_parallel_size=1))",
        "def configure_model(self):",
        *_indented(body),
    ]
    yield Snippet(where="in your LightningModule", text="\n".join(lines))
