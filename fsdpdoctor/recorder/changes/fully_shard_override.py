"""Stands between the script and `fully_shard`: other units, dtypes or meshes.

[Note: Other units] A plan names modules as the root sees them, and which call is the
root's shows only when it comes: it is the first for a module that holds all of them.
Until then calls are put off; then the plan's units are made, with the arguments
that the script gave for their modules, and then the root.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed.fsdp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from fsdpdoctor.errors import PlanError
from fsdpdoctor.plan_file import Settings
from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.schema import ROOT

Function = Callable[..., Any]

DIMENSIONS = ("dp_replicate", "dp_shard")
"""Of the mesh that a plan asks for; torchtitan's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of `fully_shard` that was put off."""

    modules: tuple[nn.Module, ...]
    arguments: dict[str, Any]


class FullyShardOverride:
    """Calls of `fully_shard` as a plan would have them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._shard: Function = torch.distributed.fsdp.fully_shard
        self._put_off: list[Call] = []
        self._mesh: Any = None

    @property
    def needed(self) -> bool:
        """Whether the plan says anything that is said to `fully_shard`."""
        settings = self._settings
        return settings.regroups or any(
            value is not None
            for value in (settings.mesh, settings.param_dtype, settings.reduce_dtype)
        )

    def attach(self, patches: Patches) -> None:
        """Take the place of `fully_shard`, under that name, wherever it is known."""
        shard = self._shard

        def fully_shard(module: Any, **arguments: Any) -> Any:
            given = self._changed(arguments)
            if not self._settings.regroups:
                return shard(module, **given)
            self._regroup(module, given)
            return module

        functools.update_wrapper(fully_shard, shard)  # `.state` too: torch calls it
        for found in list(sys.modules.values()):
            if getattr(found, "__dict__", {}).get("fully_shard") is shard:
                patches.put(found, "fully_shard", fully_shard)

    # Arguments

    def _changed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        settings = self._settings
        changed = dict(arguments)
        dtypes = {
            name: getattr(torch, value)
            for name in ("param_dtype", "reduce_dtype")
            if (value := getattr(settings, name)) is not None
        }
        if dtypes:
            policy = arguments.get("mp_policy") or MixedPrecisionPolicy()
            changed["mp_policy"] = replace(policy, **dtypes)
        if settings.mesh is not None:
            changed["mesh"] = self._mesh_for(arguments.get("mesh"))
        return changed

    def _mesh_for(self, given: Any) -> Any:
        assert self._settings.mesh is not None
        replicas, shards = self._settings.mesh
        if given is not None and given.size() != replicas * shards:
            raise PlanError(
                f"{self._settings.path} wants a mesh of {replicas}x{shards}, and the "
                f"script shards over {given.size()} ranks: FSDP2 is one of several "
                "parallelisms here"
            )
        if self._mesh is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            kind = device if given is None else given.device_type
            several = replicas > 1
            self._mesh = init_device_mesh(
                kind,
                (replicas, shards) if several else (shards,),
                mesh_dim_names=DIMENSIONS if several else DIMENSIONS[1:],
            )
        return self._mesh

    # Units

    def _regroup(self, module: Any, arguments: dict[str, Any]) -> None:
        several = isinstance(module, (list, tuple))
        modules = tuple(module) if several else (module,)
        if several or not self._holds_all(module):
            self._put_off.append(Call(modules=modules, arguments=arguments))
            return
        # Children before parents: FSDP2 takes the parameters that are not yet taken.
        for names in reversed(self._settings.modules):
            parts = [module.get_submodule(name) for name in names]
            given = self._given(parts, arguments)
            size = self._policy(", ".join(names))
            if size is not None:
                given["reshard_after_forward"] = size
            self._shard(parts if len(parts) > 1 else parts[0], **given)
        self._put_off.clear()
        size = self._policy(ROOT)
        if size is not None and size != arguments.get("reshard_after_forward"):
            arguments["reshard_after_forward"] = size
        self._shard(module, **arguments)

    def _holds_all(self, module: nn.Module) -> bool:
        names = {name for names in self._settings.modules for name in names}
        return names <= {name for name, _ in module.named_modules()}

    def _policy(self, unit: str) -> bool | int | None:
        said = self._settings.units.get(unit)
        return None if said is None else said.reshard_after_forward

    def _given(
        self, parts: Iterable[nn.Module], root: dict[str, Any]
    ) -> dict[str, Any]:
        """The script's arguments for these modules, else those of the root."""
        inside = {id(part) for part in parts}
        calls = [
            call.arguments
            for call in self._put_off
            if any(id(module) in inside for module in call.modules)
        ]
        if not calls:
            return {k: v for k, v in root.items() if k != "reshard_after_forward"}
        for other in calls[1:]:
            if other != calls[0]:
                raise PlanError(
                    f"{self._settings.path} puts modules into one unit that the script "
                    f"shards differently: {calls[0]} and {other}"
                )
        return dict(calls[0])
