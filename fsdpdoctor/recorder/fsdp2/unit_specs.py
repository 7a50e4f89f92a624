"""The effective FSDP tree: each unit's policies as they act, not as asked for."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import device_mesh

from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.process_groups import Groups
from fsdpdoctor.recorder.fsdp2.unit_registry import Units, gone
from fsdpdoctor.recorder.fsdp2.unit_state import Unit
from fsdpdoctor.schema import ROOT, UNKNOWN, ParamSpec, UnitSpec


def one_time(
    resolve: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]], tick: int
) -> int:
    """The time behind one tick."""
    return int(resolve(np.array([tick], dtype=np.int64))[0])


def dtype_name(dtype: torch.dtype | None) -> str | None:
    """A dtype as headers hold it: without `torch.`."""
    return None if dtype is None else str(dtype).removeprefix("torch.")


def original_class(module: torch.nn.Module) -> str:
    """The class of a module before `fully_shard`, checkpoint and compile wrappers."""
    for inner in ("_checkpoint_wrapped_module", "_orig_mod"):
        wrapped = module._modules.get(inner)  # no `__getattr__` of its own is asked
        if isinstance(wrapped, torch.nn.Module):
            return original_class(wrapped)
    for cls in type(module).__mro__:
        if not hasattr(cls, "_get_fsdp_state"):
            return cls.__name__
    return type(module).__name__


def without_compile(module: torch.nn.Module) -> torch.nn.Module:
    """The module itself, where `torch.compile` has wrapped it."""
    wrapped = module._modules.get("_orig_mod")
    return wrapped if isinstance(wrapped, torch.nn.Module) else module


def mesh_name(mesh: Any) -> str:
    """A DeviceMesh in words: `(replicate=2, shard=4)`, or `(8)` without names."""
    # Not `mesh.mesh`: a slice's asks for this process's rank, and the script may
    # have destroyed its process group by the time the last header is written.
    sizes = tuple(mesh.shape)
    names = mesh.mesh_dim_names
    if names is None:
        return f"({', '.join(str(size) for size in sizes)})"
    return f"({', '.join(f'{n}={s}' for n, s in zip(names, sizes, strict=True))})"


def parent_meshes(mesh: Any) -> tuple[str, ...]:
    """The mesh that a mesh was sliced from, if it was."""
    get_root = getattr(mesh, "_get_root_mesh", None)
    if get_root is not None:
        root = get_root()
    else:  # in older torch another object knows
        resources: Any = getattr(device_mesh, "_mesh_resources", None)
        root = None if resources is None else resources.get_root_mesh(mesh)
    if root is None or root is mesh or len(root.shape) <= len(mesh.shape):
        return ()
    return (mesh_name(root),)


_GONE = UnitSpec(fqn="(gone)", module_class="?")
"""Of a unit whose model was let go of before it was described, as by an exception."""


class Tree:
    """Describes units. A unit whose model is gone keeps its last description."""

    def __init__(self, units: Units, groups: Groups) -> None:
        self._units = units
        self._groups = groups
        self._state_of: dict[int, weakref.ref[Any]] = {}  # by unit
        self._tree_of: dict[int, int] = {}
        self._outer: dict[int, tuple[int, str]] = {}  # the model, and where in it
        self._trees_in: list[int] = []  # by model
        self._models: list[weakref.ref[torch.nn.Module]] = []  # another has its number
        self.model_classes: list[str] = []
        self._last: dict[int, UnitSpec] = {}
        self._compiled_together: set[int] = set()  # units
        self._trees = 0

    def add(self, root_state: Any, outer: torch.nn.Module) -> None:
        """A tree that FSDP2 has initialised, and the model that it is a part of."""
        root = root_state._modules[0]
        together = _compiled_together(outer)
        outer = without_compile(outer)
        prefix = next((n for n, m in outer.named_modules() if m is root), "")
        model = self._number_of(outer)
        self._trees_in[model] += 1
        for state in internals.all_states(root_state):
            for group in internals.groups_of(state):
                index = self._units.of(group).index
                self._state_of[index] = weakref.ref(state)
                self._tree_of[index] = self._trees
                self._outer[index] = (model, prefix)
                if any(id(module) in together for module in group.modules):
                    self._compiled_together.add(index)
        self._trees += 1

    def model_of(self, outer: torch.nn.Module) -> int:
        """A model's number among those with FSDP2 in them; UNKNOWN: it is none."""
        outer = without_compile(outer)
        for number, known in enumerate(self._models):
            if known() is outer:
                return number
        return UNKNOWN

    def _number_of(self, outer: torch.nn.Module) -> int:
        number = self.model_of(outer)
        if number != UNKNOWN:
            return number
        self._models.append(weakref.ref(outer))
        self._trees_in.append(0)
        self.model_classes.append(original_class(outer))
        return len(self._models) - 1

    def signature(self) -> object:
        """Equal as long as `specs` would say the same."""
        return tuple(
            self._signature_of(unit, group)
            for unit in self._units.all
            if (group := unit.group()) is not None
        )

    def specs(self) -> tuple[UnitSpec, ...]:
        """All units, by index."""
        for unit in self._units.all:
            group = unit.group()
            if group is not None:
                self._last[unit.index] = self._spec(unit, group)
        return _unique([self._last.get(u.index, _GONE) for u in self._units.all])

    def _signature_of(self, unit: Unit, group: Any) -> object:
        state = self._state_of.get(unit.index, gone)()
        prefetch: tuple[tuple[int, ...], ...] = ()
        if state is not None:
            prefetch = (
                tuple(map(id, state._states_to_forward_prefetch)),
                tuple(map(id, state._states_to_backward_prefetch)),
            )
        return (
            unit.index in self._state_of,
            id(group.post_forward_mesh_info),
            group.unshard_async_op,
            group.unshard_in_backward,
            getattr(group, "reduce_scatter_max_input_buffers", None),
            prefetch,
            unit.checkpointed,
            unit.bytes,
            len(unit.seen_flags),
        )

    def _spec(self, unit: Unit, group: Any) -> UnitSpec:
        params = tuple(_param(p) for p in group.fsdp_params)
        state = self._state_of.get(unit.index, gone)()
        mesh_info = group.mesh_info
        size = int(getattr(mesh_info, "shard_mesh_size", 1))
        gathered = [_gather_dtype(p) for p in group.fsdp_params]
        pairs = list(zip(group.fsdp_params, params, gathered, strict=True))
        unsharded = sum(s.padded_local_numel * size * g.itemsize for _, s, g in pairs)
        exact = sum(p._orig_size.numel() * g.itemsize for p, _, g in pairs)
        numels = [p._orig_size.numel() for p in group.fsdp_params]
        trainable = sum(n for n, s in zip(numels, params, strict=True) if s.trainable)
        modules, policies = group.modules, internals.mixed_precision(group)
        return UnitSpec(
            fqn=self._fqn(unit, group),
            module_class=", ".join(original_class(m) for m in modules),
            tree=self._tree_of.get(unit.index, 0),
            is_root=bool(state is not None and state._is_root),
            model=self._outer.get(unit.index, (0, ""))[0],
            numel=sum(numels),
            trainable_numel=trainable,
            frozen_numel=sum(numels) - trainable,
            param_bytes=sum(
                p._orig_size.numel() * _stored(p).itemsize for p in group.fsdp_params
            ),
            unsharded_bytes=unsharded,
            shard_bytes=sum(
                s.padded_local_numel * _stored(p).itemsize for p, s, _ in pairs
            ),
            padding_bytes=unsharded - exact,
            orig_dtype=_common(_stored(p) for p in group.fsdp_params),
            param_dtype=_common(p.param_dtype for p in policies),
            reduce_dtype=_common(p.reduce_dtype for p in policies),
            gather_dtype=_common(iter(gathered)) or "uint8",
            reshard_after_forward=_reshard_after_forward(group),
            reshard_after_backward=unit.flag("reshard_after_backward", group),
            unshard_in_backward=group.unshard_in_backward,
            unshard_async_op=group.unshard_async_op,
            requires_gradient_sync=unit.flag("reduce_grads", group),
            requires_all_reduce=unit.flag("all_reduce_grads", group),
            reduce_scatter_max_input_buffers=getattr(
                group, "reduce_scatter_max_input_buffers", None
            ),
            separate_reduce_scatter_group=(
                getattr(mesh_info, "reduce_scatter_process_group", None) is not None
            ),
            offload=_offload(group.offload_policy),
            forward_prefetch=self._prefetch(state, "_states_to_forward_prefetch"),
            backward_prefetch=self._prefetch(state, "_states_to_backward_prefetch"),
            shard_group=self._group(mesh_info, "shard"),
            replicate_group=self._group(mesh_info, "replicate"),
            post_forward_group=self._post_forward_group(group),
            mesh=mesh_name(mesh_info.mesh),
            parent_meshes=parent_meshes(mesh_info.mesh),
            checkpointed=unit.checkpointed,
            compiled="around"
            if unit.index in self._compiled_together
            else _compiled(group),
            params=params,
        )

    def _fqn(self, unit: Unit, group: Any) -> str:
        """As in FSDP2's labels; where a model has several trees, as in the model."""
        fqn = group._module_fqn or ""
        outer, prefix = self._outer.get(unit.index, (0, ""))
        if unit.index in self._outer and self._trees_in[outer] > 1:
            fqn = _joined(prefix, fqn)
        fqn = fqn or ROOT
        if getattr(group, "_num_param_groups", 1) > 1:
            size = getattr(group.mesh_info, "shard_mesh_size", 1)
            return f"{fqn} [pg={size}]"
        return fqn

    def _prefetch(self, state: Any, name: str) -> tuple[int, ...] | None:
        if state is None:
            return None
        return tuple(
            self._units.of(group).index
            for target in getattr(state, name)
            for group in internals.groups_of(target)
        )

    def _group(self, mesh_info: Any, role: str) -> int:
        group = getattr(mesh_info, f"{role}_process_group", None)
        return self._groups.index(group, role)

    def _post_forward_group(self, group: Any) -> int:
        info = group.post_forward_mesh_info
        if info is None or info is group.mesh_info or info == group.mesh_info:
            return UNKNOWN
        return self._groups.index(info.shard_process_group, "post_forward")


def _joined(prefix: str, fqns: str) -> str:
    """A grouped unit's FQNs, each below the tree's place in the whole model."""
    if not prefix:
        return fqns
    return ", ".join(f"{prefix}.{f}" if f else prefix for f in fqns.split(", "))


def _unique(specs: list[UnitSpec]) -> tuple[UnitSpec, ...]:
    """Names of several trees may meet; then the tree's number tells them apart."""
    trees: dict[str, set[int]] = {}
    for spec in specs:
        trees.setdefault(spec.fqn, set()).add(spec.tree)
    seen: dict[str, int] = {}
    named = []
    for spec in specs:
        fqn = spec.fqn
        if len(trees[fqn]) > 1 and spec.tree:
            fqn = f"{fqn} [tree={spec.tree}]"
        seen[fqn] = seen.get(fqn, 0) + 1
        if seen[fqn] > 1:  # two groups of one module, over meshes of one size
            fqn = f"{fqn} #{seen[fqn]}"
        named.append(replace(spec, fqn=fqn))
    return tuple(named)


def _stored(param: Any) -> torch.dtype:
    dtype: torch.dtype = param.sharded_param.dtype
    return dtype


def _gather_dtype(param: Any) -> torch.dtype:
    return getattr(param, "param_dtype", None) or _stored(param)


def _common(dtypes: Any) -> str | None:
    names = {dtype_name(dtype) for dtype in dtypes}
    return names.pop() if len(names) == 1 else None


def _param(param: Any) -> ParamSpec:
    return ParamSpec(
        fqn=param._param_fqn or param._module_info.param_name,
        shape=tuple(param._orig_size),
        dtype=dtype_name(_stored(param)) or "",
        trainable=param.sharded_param.requires_grad,
        shard_dim=int(param.fsdp_placement.dim),
        local_numel=param.sharded_size.numel(),
        padded_local_numel=param.padded_sharded_param_size.numel(),
    )


def _reshard_after_forward(group: Any) -> bool | int | None:
    if not hasattr(group.mesh_info, "shard_mesh_size"):
        return None  # replicated: there is nothing to reshard
    info = group.post_forward_mesh_info
    if info is None:
        return False
    return True if info == group.mesh_info else int(info.shard_mesh_size)


def _offload(policy: Any) -> str | None:
    pinned = getattr(policy, "pin_memory", None)
    return None if pinned is None else "cpu-pinned" if pinned else "cpu"


def _compiled_together(outer: torch.nn.Module) -> set[int]:
    """Ids of modules that were compiled as a part of something with several units."""
    found: set[int] = set()
    for module in outer.modules():
        if not _is_compiled(module):
            continue
        inner = list(module.modules())
        # By class: a compiled module passes other attributes on to what it wraps.
        if sum(hasattr(type(m), "_get_fsdp_state") for m in inner) > 1:
            found |= {id(m) for m in inner}
    return found


def _compiled(group: Any) -> str | None:
    if "_orig_mod" in (group._module_fqn or ""):
        return "around"
    if any(_is_compiled(m) for module in group.modules for m in module.modules()):
        return "inside"
    return None


REHEARSED = "_fsdpdoctor_compiled"
"""What a module has that was compiled in a rehearsal, where nothing wraps it."""


def _is_compiled(module: torch.nn.Module) -> bool:
    """By `torch.compile(module)` or by `module.compile()`, also in a rehearsal."""
    own = vars(module)
    in_place = own.get("_compiled_call_impl") is not None
    return in_place or "_orig_mod" in module._modules or REHEARSED in own
