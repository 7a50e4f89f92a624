"""Small FSDP2 trainings, each one way in which people use FSDP2.

One process per rank runs many of them in turn (`job.py`), each recorded into a
folder of its own. Every function trains and returns nothing.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from tests.recorder import several_models
from tests.recorder.other_calls import base_calls, other_calls
from tests.recorder.small_model import (
    VOCABULARY,
    WIDTH,
    Model,
    batch,
    loss_of,
    optimizer_of,
    sharded,
    train,
)
from tests.recorder.surroundings import (
    ddp,
    deleted,
    exception,
    fsdp1,
    host_events,
    optimizer_in_backward,
    plain,
    stale_optimizer,
    two_optimizers,
    unmanaged,
    user_steps,
)


def block() -> None:
    """A unit per block and the root, as most people do."""
    train(sharded())


def reshard_false() -> None:
    """Nothing is resharded after forward."""
    train(sharded(reshard_after_forward=False))


def root_only() -> None:
    """One unit for everything."""
    torch.manual_seed(0)
    model: Any = Model()
    fully_shard(model)
    train(model)


def every_linear() -> None:
    """Each linear layer is a unit, and so are the blocks' root and the root."""
    torch.manual_seed(0)
    model: Any = Model()
    for layer in model.layers:
        fully_shard(layer.a)
        fully_shard(layer.b)
    fully_shard(model)
    train(model)


def accumulate() -> None:
    """Four micro-batches, gradients reduced in each."""
    train(sharded(), steps=2, micro_batches=4)


def _accumulate(model: Any, *, keep: bool) -> None:
    optimizer = optimizer_of(model)
    for _ in range(2):
        for i in range(4):
            last = i == 3
            model.set_requires_gradient_sync(last)
            if keep:
                model.set_reshard_after_backward(last)
            loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


def accumulate_sync_last() -> None:
    """Four micro-batches, gradients reduced in the last."""
    _accumulate(sharded(), keep=False)


def accumulate_keep() -> None:
    """The same, parameters kept between backward and forward."""
    _accumulate(sharded(), keep=True)


def accumulate_keep_all() -> None:
    """The same, parameters kept after forward too."""
    _accumulate(sharded(reshard_after_forward=False), keep=True)


def grouped() -> None:
    """The embedding alone; head and last block in one unit."""
    torch.manual_seed(0)
    model: Any = Model()
    fully_shard(model.embed)
    for layer in list(model.layers)[:-1]:
        fully_shard(layer)
    fully_shard([model.layers[-1], model.head])
    fully_shard(model)
    train(model)


def several_groups() -> None:
    """A block whose parameters are sharded over two meshes: two units."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import (
        FSDPMeshInfo,
        ShardPlacementResult,
    )
    from torch.distributed.tensor import Shard

    torch.manual_seed(0)
    model: Any = Model()
    world = dist.get_world_size()
    both = list(range(world))
    groups = [dist.new_group(both), dist.new_group(both)]
    one, two = (
        FSDPMeshInfo(DeviceMesh.from_group(g, "cpu"), shard_mesh_dim=0) for g in groups
    )

    def place(second: set[int], param: nn.Parameter) -> ShardPlacementResult:
        mesh_info = two if id(param) in second else one
        return ShardPlacementResult(placement=Shard(0), mesh_info=mesh_info)

    for layer in model.layers:
        second = {id(param) for param in layer.b.parameters()}
        fully_shard(
            layer,
            mesh=one.mesh,
            shard_placement_fn=functools.partial(place, second),
        )
    fully_shard(model, mesh=one.mesh)
    train(model)


def several_roots() -> None:
    """Only the blocks are sharded: each is the root of its own tree."""
    torch.manual_seed(0)
    model: Any = Model()
    for layer in model.layers:
        fully_shard(layer)
    train(model)


def tied() -> None:
    """Embedding and head share their weight, in the root."""
    torch.manual_seed(0)
    model: Any = Model()
    model.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    model.head.weight = model.embed.weight
    train(sharded(model))


def frozen() -> None:
    """All frozen but the last block."""
    torch.manual_seed(0)
    model: Any = Model()
    for name, param in model.named_parameters():
        param.requires_grad = name.startswith("layers.3.")
    train(sharded(model))


def checkpoint_non_reentrant() -> None:
    """Blocks are units, recomputed in backward."""
    train(sharded(Model(reentrant=False)))


def checkpoint_reentrant() -> None:
    """The same, the old way."""
    train(sharded(Model(reentrant=True)))


def nested_in_checkpoint() -> None:
    """Recomputed blocks that hold a unit of their own."""
    _nested(Model(reentrant=False))


def nested_in_reentrant() -> None:
    """The same, recomputed the old way: the inner unit's forward comes first."""
    _nested(Model(reentrant=True))


def _nested(model: Any) -> None:
    for layer in model.layers:
        fully_shard(layer.b)
        fully_shard(layer)
    fully_shard(model)
    train(model)


def forward_method() -> None:
    """A root whose own methods run forwards."""
    model = sharded()
    register_fsdp_forward_method(model, "generate")
    with torch.no_grad():
        model.generate(batch(), 3)
    train(model)


def manual_unshard() -> None:
    """The root is gathered by hand before each step."""
    model = sharded()
    optimizer = optimizer_of(model)
    for _ in range(3):
        handle = model.unshard(async_op=True)
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert handle is not None


def asynchronous_prefetch() -> None:
    """Explicit prefetch, with work handles."""
    model = sharded()
    model._set_unshard_async_op(True)
    layers = list(model.layers)
    for layer, following in itertools.pairwise(layers):
        layer.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([layer])
    train(model)


def skipping_prefetch() -> None:
    """A prefetch chain that skips a layer: what is gathered comes too early."""
    model = sharded()
    layers = list(model.layers)
    layers[0].set_modules_to_forward_prefetch([layers[2]])
    train(model)


def useless_prefetch() -> None:
    """The last block prefetches the first, which does not run again."""
    model = sharded()
    layers = list(model.layers)
    layers[3].set_modules_to_forward_prefetch([layers[0]])
    train(model)


def offload() -> None:
    """Parameters and gradients live on the CPU."""
    train(sharded(offload_policy=CPUOffloadPolicy(pin_memory=False)))


def evaluate() -> None:
    """A forward without gradients after each step, and nothing in the last."""
    model = sharded()
    optimizer = optimizer_of(model)
    for _ in range(3):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            loss_of(model)


def generate() -> None:
    """Five forwards without gradients, and no optimizer."""
    model = sharded()
    with torch.no_grad():
        model.generate(batch(), 5)


def two_forwards() -> None:
    """Two forwards, then one backward, as preference losses do."""
    model = sharded()
    optimizer = optimizer_of(model)
    for _ in range(3):
        (loss_of(model) + loss_of(model)).backward()
        optimizer.step()
        optimizer.zero_grad()


def sub_mesh() -> None:
    """The 1-D sub-mesh of a 2-D mesh was passed: replicas are never reduced."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("rep", "shard"))
    train(sharded(mesh=mesh["shard"]))


def hybrid() -> None:
    """HSDP: shards in pairs, replicated over them."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("rep", "shard"))
    train(sharded(mesh=mesh))


def replicas_only() -> None:
    """HSDP whose shards are of one rank: no gather, all-reduces only."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world, 1), mesh_dim_names=("rep", "shard"))
    train(sharded(mesh=mesh))


def one_replica() -> None:
    """HSDP with one replica: all-reduces of one rank."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("rep", "shard"))
    train(sharded(mesh=mesh))


def reshard_int() -> None:
    """Resharded to pairs after forward; the root stays."""
    torch.manual_seed(0)
    model: Any = Model()
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=2)
    fully_shard(model)
    train(model)


def mixed_precision() -> None:
    """bf16 compute and gather, fp32 reduction."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    train(sharded(mp_policy=policy))


TWO_RANKS: tuple[Callable[[], None], ...] = (
    block,
    reshard_false,
    root_only,
    every_linear,
    accumulate,
    accumulate_sync_last,
    accumulate_keep,
    accumulate_keep_all,
    grouped,
    several_groups,
    several_roots,
    tied,
    frozen,
    checkpoint_non_reentrant,
    checkpoint_reentrant,
    nested_in_checkpoint,
    nested_in_reentrant,
    forward_method,
    manual_unshard,
    asynchronous_prefetch,
    skipping_prefetch,
    useless_prefetch,
    offload,
    evaluate,
    generate,
    two_forwards,
    exception,
    two_optimizers,
    optimizer_in_backward,
    stale_optimizer,
    unmanaged,
    replicas_only,
    one_replica,
    mixed_precision,
    ddp,
    fsdp1,
    plain,
    host_events,
    base_calls,
    other_calls,
    user_steps,
    deleted,
    *several_models.TWO_RANKS,
)


FOUR_RANKS: tuple[Callable[[], None], ...] = (
    hybrid,
    sub_mesh,
    reshard_int,
    *several_models.FOUR_RANKS,
)


ONE_RANK: tuple[Callable[[], None], ...] = (block, accumulate, evaluate)


def run_all(folder: str, scenarios: tuple[Callable[[], None], ...]) -> None:
    """Record each into a folder named for it; errors go beside it."""
    import traceback
    from pathlib import Path

    import fsdpdoctor

    for scenario in scenarios:
        out = Path(folder) / scenario.__name__
        began = time.perf_counter()
        try:
            with fsdpdoctor.record(out, every=1):
                scenario()
        except Exception:
            report = Path(folder) / f"{scenario.__name__}.{dist.get_rank()}.error"
            report.write_text(traceback.format_exc())
        with contextlib.suppress(RuntimeError):
            dist.barrier()
        took = Path(folder) / "took.txt"
        with took.open("a") as file:
            file.write(f"{scenario.__name__} {time.perf_counter() - began:.2f}\n")
