"""Runs a script as rank 0 of N in one process: a rehearsal of a bigger job.

[Note: What a rehearsal is] The script, its kernels, its allocator, its host cost
and its 1/N shards are real. The network is a model (`network`), the other ranks are
copies of this one (`wire_group`), and so losses are meaningless. What the script
asks torch.distributed for is taken over: the job's size and rank, in the
environment and in `init_process_group`, and the backend of every group. Where the
rehearsal has replicas (HSDP), a 2-D mesh gets its shape, and a `fully_shard`
without a mesh, or with one over all ranks, gets a 2-D one. Distributed checkpoints
are not saved: their parts would not fit together, and they could replace good ones.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.checkpoint import state_dict_saver as saver
from torch.distributed.device_mesh import init_device_mesh

from fsdpdoctor.errors import UsageError
from fsdpdoctor.network import NetworkModel, wire_note
from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.rehearsal.modelled_group import BACKEND, World, modelling
from fsdpdoctor.rehearsal.modelled_work import Transfer

DIMENSIONS = ("dp_replicate", "dp_shard")
"""Of the mesh that a rehearsal with replicas makes; torchtitan's names."""

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The job that is rehearsed."""

    wire: NetworkModel
    world_size: int
    replicas: int = 1  # more than one: HSDP
    node_size: int = 8  # ranks per node

    def __post_init__(self) -> None:
        if self.world_size < 2:
            raise UsageError(
                f"--world-size is {self.world_size}; a rehearsal needs at least 2"
            )
        if self.node_size < 1:
            raise UsageError(
                f"--nproc-per-node is {self.node_size}; expected at least 1"
            )
        if self.world_size % self.replicas:
            raise UsageError(
                f"--mesh has {self.replicas} replicas, which do not divide "
                f"--world-size {self.world_size}"
            )

    @property
    def shard_size(self) -> int:
        """Ranks that share one copy of the model."""
        return self.world_size // self.replicas

    @property
    def note(self) -> str:
        """What every reader of the run must know."""
        mesh = f" as {self.replicas}x{self.shard_size}" if self.replicas > 1 else ""
        return (
            f"losses are meaningless: a rehearsal of rank 0 of {self.world_size}{mesh} "
            + wire_note(self.wire)
        )

    @property
    def environment(self) -> dict[str, str]:
        """What torchrun would say to rank 0."""
        local = min(self.node_size, self.world_size)
        return {
            "RANK": "0",
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": str(local),
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": str(-(-self.world_size // local)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",  # nobody listens, nobody connects
        }


@contextmanager
def rehearsing(
    rehearsal: Rehearsal,
    log: list[Transfer] | None = None,
    virtual: Callable[[int, str], tuple[int, int]] | None = None,
) -> Iterator[None]:
    """While it is open, whatever uses torch.distributed is rank 0 of the job.

    Every collective goes into `log`, where one is given.
    """
    world = World(
        wire=rehearsal.wire,
        size=rehearsal.world_size,
        shard_size=rehearsal.shard_size,
        node_size=rehearsal.node_size,
        log=log,
        virtual=virtual,
    )
    patches = Patches()
    with _environment(rehearsal.environment), modelling(world):
        _take_over_groups(patches, rehearsal)
        _take_over_checkpoints(patches)
        if rehearsal.replicas > 1:
            _take_over_meshes(patches, rehearsal)
        try:
            yield
        finally:
            patches.undo()
            if dist.is_initialized():  # many scripts leave that to the exit
                dist.destroy_process_group()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _replace(patches: Patches, original: Function, replacement: Function) -> None:
    """In every loaded module that has the function under its own name."""
    functools.update_wrapper(replacement, original)
    name = original.__name__
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            patches.put(module, name, replacement)


def _take_over_groups(patches: Patches, rehearsal: Rehearsal) -> None:
    init, new_group = dist.init_process_group, dist.new_group

    # Ranks that are not there have the same parameters as this one.
    if hasattr(dist, "_verify_params_across_processes"):
        patches.put(dist, "_verify_params_across_processes", lambda *_: None)

    # How to reach the others, and over what, is ours to say; the rest is theirs.
    def init_process_group(
        *_args: object, timeout: Any = None, **_kwargs: object
    ) -> None:
        init(
            BACKEND,
            store=HashStore(),
            rank=0,
            world_size=rehearsal.world_size,
            timeout=timeout,
        )

    def make_group(
        ranks: Any = None,
        timeout: Any = None,
        _backend: object = None,
        _options: object = None,
        use_local_synchronization: bool = False,
        group_desc: str | None = None,
        **_kwargs: object,
    ) -> Any:
        return new_group(
            ranks,
            timeout,
            BACKEND,
            use_local_synchronization=use_local_synchronization,
            group_desc=group_desc,
        )

    def split_group(
        parent_pg: object = None, split_ranks: Any = None, **kwargs: Any
    ) -> Any:
        mine = next((ranks for ranks in split_ranks or () if 0 in ranks), None)
        if mine is None:
            return None
        return make_group(list(mine), group_desc=kwargs.get("group_desc"))

    def monitored_barrier(group: Any = None, *_args: object, **_kwargs: object) -> None:
        dist.barrier(group=group)

    _replace(patches, init, init_process_group)
    _replace(patches, new_group, make_group)
    _replace(patches, dist.monitored_barrier, monitored_barrier)
    if split := getattr(dist, "split_group", None):  # from torch 2.4 on
        _replace(patches, split, split_group)


def _take_over_meshes(patches: Patches, rehearsal: Rehearsal) -> None:
    shape = (rehearsal.replicas, rehearsal.shard_size)
    shard: Function = torch.distributed.fsdp.fully_shard
    init_mesh = init_device_mesh  # the name itself is taken over

    def make_mesh(
        device_type: str, mesh_shape: tuple[int, ...], **kwargs: Any
    ) -> dist.device_mesh.DeviceMesh:
        given = shape if len(mesh_shape) == 2 else mesh_shape
        return init_mesh(device_type, given, **kwargs)

    @functools.cache
    def replicated_mesh(device_type: str) -> dist.device_mesh.DeviceMesh:
        return init_mesh(device_type, shape, mesh_dim_names=DIMENSIONS)

    def fully_shard(module: Any, **kwargs: Any) -> Any:
        mesh = kwargs.get("mesh")
        if mesh is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            kwargs["mesh"] = replicated_mesh(device)
        elif mesh.ndim == 1 and mesh.size() == rehearsal.world_size:
            kwargs["mesh"] = replicated_mesh(mesh.device_type)
        return shard(module, **kwargs)

    _replace(patches, init_mesh, make_mesh)
    _replace(patches, shard, fully_shard)


def _take_over_checkpoints(patches: Patches) -> None:
    def save(*_args: object, **_kwargs: object) -> None:
        warnings.warn(
            "fsdpdoctor rehearse: distributed checkpoints are not saved",
            RuntimeWarning,
            stacklevel=2,
        )

    def async_save(*_args: object, **_kwargs: object) -> Future[None]:
        done: Future[None] = Future()
        save()
        done.set_result(None)
        return done

    _replace(patches, saver.save, save)
    _replace(patches, saver.async_save, async_save)
