"""What frameworks do where they shard, in a few lines: none is installed here.

`pytest -m frameworks` does the same with the real ones, where they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from fsdpdoctor.changes.snippet import Snippet

Scope = dict[str, Any]

TITAN = "torchtitan.distributed.fsdp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a model is sharded with, and what is one block of it."""

    units: Sequence[Sequence[str]]  # paths of modules, below the root
    ranks: int = 8
    replicate: int = 1
    policy: MixedPrecisionPolicy | None = None

    def modules(self, model: Any) -> list[list[Any]]:
        """Of each unit."""
        return [[model.get_submodule(path) for path in paths] for paths in self.units]

    @property
    def dtypes(self) -> MixedPrecisionPolicy:
        """What every unit is told."""
        return self.policy or MixedPrecisionPolicy()

    def shard(self, model: Any) -> None:
        """As a user calls it, where the framework does not."""
        mesh = mesh_of(self.ranks, self.replicate)
        for unit in self.modules(model):
            fully_shard(unit, mesh=mesh, mp_policy=self.dtypes)
        fully_shard(model, mesh=mesh, mp_policy=self.dtypes)


def mesh_of(ranks: int, replicate: int) -> Any:
    """With the names that all of them use."""
    if replicate == 1:
        return init_device_mesh("cpu", (ranks,))
    shape = (replicate, ranks // replicate)
    return init_device_mesh("cpu", shape, mesh_dim_names=("dp_replicate", "dp_shard"))


def placed(found: list[Snippet], start: str) -> str:
    """The text that goes to one place."""
    return "\n".join(s.text for s in found if s.where.startswith(start))


def torchtitan(
    patch: pytest.MonkeyPatch, model: Any, found: list[Snippet], given: Given
) -> Scope:
    """Flags, and its own call, which also leaves gradients undivided."""
    lines = placed(found, "on the command line").splitlines()
    flags = dict(line.removeprefix("--").split(" ") for line in lines)
    module: Any = ModuleType(TITAN)
    module.fully_shard = fully_shard
    for name in ("torchtitan", "torchtitan.distributed"):
        patch.setitem(sys.modules, name, ModuleType(name))
    patch.setitem(sys.modules, TITAN, module)
    patch.setattr(sys.modules["torchtitan.distributed"], "fsdp", module, raising=False)
    parallel = "parallelism.data_parallel_replicate_degree"
    mesh = mesh_of(given.ranks, int(flags.get(parallel, given.replicate)))
    dtypes = {
        f"{name}_dtype": getattr(torch, flags[key])
        if (key := f"training.mixed_precision_{name}") in flags
        else getattr(given.dtypes, f"{name}_dtype")
        for name in ("param", "reduce")
    }
    scope: Scope = {"model": model}
    exec(placed(found, "before its call"), scope)
    policy = MixedPrecisionPolicy(**dtypes, cast_forward_inputs=False)
    config = {"mesh": mesh, "mp_policy": policy}
    reshard = flags.get("parallelism.fsdp_reshard_after_forward") != "never"
    for unit in given.modules(model):
        module.fully_shard(unit, **config, reshard_after_forward=reshard)
    module.fully_shard(model, **config)
    assert module.fully_shard is fully_shard  # nothing of the change stays behind
    exec(placed(found, "after its call"), scope)
    return scope


def accelerate(
    patch: pytest.MonkeyPatch, model: Any, found: list[Snippet], given: Given
) -> Scope:
    """Keys, and `prepare`, which leaves alone what is sharded."""
    keys = yaml.safe_load(placed(found, "in the file")) or {}
    config = {
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": True,
        **keys.get("fsdp_config", {}),
    }
    replicate = keys.get("parallelism_config", {}).get(
        "parallelism_config_dp_replicate_size", given.replicate
    )
    plugin = SimpleNamespace(
        mixed_precision_policy=given.dtypes, cpu_offload=OffloadPolicy()
    )
    mesh = mesh_of(given.ranks, replicate)
    names = mesh.mesh_dim_names
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        torch_device_mesh=mesh if names else None,
        parallelism_config=SimpleNamespace(fsdp_dim_names=names),
    )
    scope: Scope = {"model": model, "accelerator": accelerator}
    exec(placed(found, "before accelerator.prepare"), scope)
    told: dict[str, Any] = {"mesh": mesh, "mp_policy": plugin.mixed_precision_policy}
    if config["fsdp_auto_wrap_policy"] != "NO_WRAP":
        units = given.modules(model)
        if all(isinstance(module, FSDPModule) for unit in units for module in unit):
            raise ValueError("Could not find the transformer layer class")
        reshard = config["fsdp_reshard_after_forward"]
        for unit in units:
            if not isinstance(unit[0], FSDPModule):
                fully_shard(unit, **told, reshard_after_forward=reshard)
    fully_shard(model, **told)
    exec(placed(found, "after model = accelerator.prepare"), scope)
    return scope


def lightning(
    patch: pytest.MonkeyPatch, model: Any, found: list[Snippet], given: Given
) -> Scope:
    """`configure_model`, called for fitting and again for testing."""
    own: Any = nn.Module()
    own.net = model
    own.device_mesh = {"data_parallel": mesh_of(given.ranks, given.replicate)}
    instead = placed(found, "in configure_model")
    for _ in range(2):
        if instead:
            exec(instead, {"self": own})
        elif not isinstance(model, FSDPModule):
            given.shard(model)
            exec(placed(found, "at the end of configure_model"), {"self": own})
    return {"self": own}


def fabric(
    patch: pytest.MonkeyPatch, model: Any, found: list[Snippet], given: Given
) -> Scope:
    """The function that Fabric's strategy is given."""
    mesh = {"data_parallel": mesh_of(given.ranks, given.replicate)}
    scope: Scope = {"model": model, "device_mesh": mesh}
    instead = placed(found, "in the parallelize_fn")
    if instead:
        exec(instead, scope)
    else:
        given.shard(model)
        exec(placed(found, "at the end of the parallelize_fn"), scope)
    return scope


TRAINERS = {
    "torchtitan": torchtitan,
    "accelerate": accelerate,
    "lightning": lightning,
    "fabric": fabric,
}
