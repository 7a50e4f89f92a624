"""A script of FSDP1, read as text: what each of its arguments is in FSDP2.

Nothing of the script runs. Source of the table: PyTorch's "Getting Started with Fully
Sharded Data Parallel (FSDP2)" and the docstring of `fully_shard`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

CLASSES: Final = ("FullyShardedDataParallel", "FSDP")
MODULE: Final = "torch.distributed.fsdp"

_GONE: Final = {
    "use_orig_params": "is always so: FSDP2 keeps each parameter, as a DTensor",
    "limit_all_gathers": "is always so, and costs nothing: no setting",
    "backward_prefetch": "BACKWARD_PRE is always on; deeper: "
    "set_modules_to_backward_prefetch",
    "forward_prefetch": "set_modules_to_forward_prefetch, or model.unshard() early",
    "device_id": "the device of the mesh: torch.cuda.set_device before",
    "param_init_fn": "make the model on the meta device, shard it, model.to_empty("
    "device=...), then its own initialisation",
    "sync_module_states": "set_model_state_dict(model, state, options="
    "StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))",
    "process_group": "mesh=init_device_mesh(...), of the same ranks",
    "ignored_modules": "ignored_params=, a set of parameters",
    "ignored_states": "ignored_params=, a set of parameters",
}
"""Arguments that have no value of their own in FSDP2, and what takes their place."""

_METHODS: Final = {
    "no_sync": "model.set_requires_gradient_sync(False) before a micro-batch that is "
    "not the last, True before the last",
    "summon_full_params": "parameter.full_tensor(), one at a time",
    "state_dict_type": "torch.distributed.checkpoint.state_dict.get_model_state_dict, "
    "with StateDictOptions",
    "set_state_dict_type": "get_model_state_dict with StateDictOptions",
    "optim_state_dict": "get_optimizer_state_dict",
    "optim_state_dict_to_load": "set_optimizer_state_dict",
    "clip_grad_norm_": "torch.nn.utils.clip_grad_norm_(model.parameters(), ...)",
}
"""Methods of FSDP1's wrapper, and what is called instead."""

_RESHARD: Final = {
    "FULL_SHARD": (True, False),
    "SHARD_GRAD_OP": (False, False),
    "HYBRID_SHARD": (True, True),
    "_HYBRID_SHARD_ZERO2": (False, True),
}
"""A sharding strategy: `reshard_after_forward`, and whether the mesh has replicas."""

_IN_BOTH: Final = ("param_dtype", "reduce_dtype", "cast_forward_inputs")
"""Fields of `MixedPrecision` that `MixedPrecisionPolicy` has, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """One thing of FSDP1, and what it is in FSDP2."""

    line: int
    was: str  # "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP"
    now: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """What a script of FSDP1 has to change."""

    line: int  # of its first wrapping
    replaced: tuple[Replaced, ...]
    code: str  # in the place of that wrapping


@dataclass(slots=True)
class _Code:
    """The parts of what is pasted."""

    imports: set[str]
    options: list[str]
    before: list[str]
    blocks: str | None = None  # a tuple of classes


def migration(source: str) -> Migration | None:
    """How a script goes to FSDP2; None where it wraps nothing with FSDP1.

    Raises SyntaxError.
    """
    tree = ast.parse(source)
    names = _names(tree)
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _last(node.func, names) in names.classes
    ]
    if not calls:
        return None
    calls.sort(key=lambda call: call.lineno)
    first = calls[0]
    code = _Code(imports={"fully_shard"}, options=[], before=[])
    replaced = list(_arguments(first, _assigned(tree), code))
    replaced += _methods(tree, names)
    return Migration(
        line=first.lineno,
        replaced=tuple(sorted(replaced, key=lambda one: one.line)),
        code=_written(first, code),
    )


@dataclass(frozen=True, slots=True)
class _Names:
    """What the script calls FSDP1 and its module."""

    classes: frozenset[str]
    modules: frozenset[str]


def _names(tree: ast.Module) -> _Names:
    classes, modules = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(MODULE):
            for alias in node.names:
                if alias.name == CLASSES[0]:
                    classes.add(alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module == "torch.distributed":
            modules |= {a.asname or a.name for a in node.names if a.name == "fsdp"}
        elif isinstance(node, ast.Import):
            modules |= {
                a.asname or a.name for a in node.names if a.name.startswith(MODULE)
            }
    if modules:
        classes.add(CLASSES[0])
    return _Names(frozenset(classes), frozenset(modules))


def _last(function: ast.expr, names: _Names) -> str | None:
    """The name that is called, where it is FSDP1's."""
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute):
        return function.attr if ast.unparse(function.value) in names.modules else None
    return None


def _assigned(tree: ast.Module) -> Mapping[str, ast.expr]:
    """Names that the script gives one value, and that value."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _arguments(
    call: ast.Call, assigned: Mapping[str, ast.expr], code: _Code
) -> Iterator[Replaced]:
    for keyword in call.keywords:
        value = keyword.value
        if isinstance(value, ast.Name):
            value = assigned.get(value.id, value)
        if keyword.arg is None:
            now = "arguments that are not seen here: go through them by hand"
        else:
            now = _argument(keyword.arg, value, code)
        was = f"{keyword.arg or '**'}={ast.unparse(keyword.value)}"
        yield Replaced(line=keyword.value.lineno, was=was, now=now)


def _argument(name: str, value: ast.expr, code: _Code) -> str:
    """What an argument becomes; writes it into the code."""
    text = ast.unparse(value)
    if text == "None":
        return "nothing"
    if name == "sharding_strategy":
        return _strategy(text, code)
    if name == "mixed_precision":
        return _precision(value, code)
    if name == "cpu_offload":
        return _offload(text, code)
    if name == "auto_wrap_policy":
        return _wrapping(value, code)
    if name == "device_mesh":
        code.options.append(f"mesh={text}")
        return f"mesh={text}"
    if name == "ignored_modules":
        code.options.append(
            f"ignored_params={{p for m in {text} for p in m.parameters()}}"
        )
    if name == "ignored_states":
        code.options.append(f"ignored_params=set({text})")
    return _GONE.get(name, "has no counterpart: leave it out")


def _strategy(text: str, code: _Code) -> str:
    strategy = text.rsplit(".", 1)[-1]
    if strategy == "NO_SHARD":
        return "DistributedDataParallel: fully_shard always shards"
    if strategy not in _RESHARD:
        return "reshard_after_forward=True for a full shard, False for SHARD_GRAD_OP"
    reshard, hybrid = _RESHARD[strategy]
    now = f"reshard_after_forward={reshard}"
    code.options.append(now)
    if not hybrid:
        return now
    code.before += [
        "# Replicas x shards: as many ranks to a node as it has devices.",
        "ranks, per_node = dist.get_world_size(), torch.cuda.device_count()",
        "mesh = init_device_mesh(",
        '    "cuda",',
        "    (ranks // per_node, per_node),",
        '    mesh_dim_names=("replicate", "shard"),',
        ")",
    ]
    code.options.append("mesh=mesh")
    return f"{now}, and a mesh of two dimensions: (replicate, shard)"


def _precision(value: ast.expr, code: _Code) -> str:
    code.imports.add("MixedPrecisionPolicy")
    if not isinstance(value, ast.Call):
        text = ast.unparse(value)
        code.options.append(
            f"mp_policy=MixedPrecisionPolicy(param_dtype={text}.param_dtype, "
            f"reduce_dtype={text}.reduce_dtype)"
        )
        return "mp_policy=MixedPrecisionPolicy(...), of the same two dtypes"
    given = {k.arg: ast.unparse(k.value) for k in value.keywords}
    kept = [f"{name}={given.pop(name)}" for name in _IN_BOTH if name in given]
    now = f"mp_policy=MixedPrecisionPolicy({', '.join(kept)})"
    code.options.append(now)
    if given:
        now += f"; {', '.join(map(str, given))}: no counterpart (buffers keep theirs)"
    return now


def _offload(text: str, code: _Code) -> str:
    if "True" not in text:
        return "nothing: parameters stay on the device"
    code.imports.add("CPUOffloadPolicy")
    code.options.append("offload_policy=CPUOffloadPolicy()")
    return "offload_policy=CPUOffloadPolicy()"


def _wrapping(value: ast.expr, code: _Code) -> str:
    classes = None
    for node in ast.walk(value):
        if isinstance(node, ast.keyword) and node.arg == "transformer_layer_cls":
            classes = node.value
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith(
        "ModuleWrapPolicy"
    ):
        classes = value.args[0] if value.args else classes
    if isinstance(classes, (ast.Set, ast.List, ast.Tuple)):
        code.blocks = ", ".join(ast.unparse(one) for one in classes.elts)
        return f"fully_shard on each {code.blocks}, then on the model"
    return "fully_shard on each repeated block, then on the model: no policy is taken"


def _methods(tree: ast.Module, names: _Names) -> Iterator[Replaced]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr not in _METHODS:
            continue
        owner = ast.unparse(node.value)
        if owner in ("torch.nn.utils", "nn.utils", "utils", "torch.nn.utils.clip_grad"):
            continue
        yield Replaced(
            line=node.lineno, was=f"{owner}.{node.attr}", now=_METHODS[node.attr]
        )


def _written(call: ast.Call, code: _Code) -> str:
    """The code in the place of a wrapping."""
    model = "model"
    made: tuple[str, ...] = ()
    if call.args:
        text = ast.unparse(call.args[0])
        if isinstance(call.args[0], (ast.Name, ast.Attribute)):
            model = text
        else:
            made = (f"model = {text}",)
    lines = [f"from {MODULE} import {', '.join(sorted(code.imports))}"]
    if code.before:
        lines.append("from torch.distributed.device_mesh import init_device_mesh")
    lines += ["", *made, *code.before]
    given = ""
    if code.options:
        lines += ["options = dict(", *(f"    {one}," for one in code.options), ")"]
        given = ", **options"
    if code.blocks is None:
        lines.append("# Block: the class of the model's repeated blocks.")
    lines += [
        f"for module in list({model}.modules()):",
        f"    if isinstance(module, ({code.blocks or 'Block'},)):",
        f"        fully_shard(module{given})",
        f"fully_shard({model}{given})  # in place; build the optimizer after it",
    ]
    return "\n".join(lines)
