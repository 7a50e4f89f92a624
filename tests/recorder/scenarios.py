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

from tests.models import LanguageModel

WIDTH = 16
VOCABULARY = 32
BLOCKS = 4


class Block(nn.Module):
    """Two layers with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        out: torch.Tensor = x + self.b(torch.relu(self.a(x)))
        return out


class Model(LanguageModel):
    """Of four blocks, with a method of its own."""

    def __init__(self, *, reentrant: bool | None = None) -> None:
        super().__init__(
            (Block() for _ in range(BLOCKS)),
            vocabulary=VOCABULARY,
            width=WIDTH,
            reentrant=reentrant,
        )

    def generate(self, tokens: torch.Tensor, count: int) -> torch.Tensor:
        """Run it so many times."""
        for _ in range(count):
            tokens = self(tokens).argmax(-1)
        return tokens


def sharded(model: Any | None = None, **options: Any) -> Any:
    """A model with a unit per block, and the root."""
    torch.manual_seed(0)
    model = model or Model()
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    return model


def batch() -> torch.Tensor:
    """Tokens, the same on every rank: ranks may then be compared."""
    return torch.arange(12).reshape(3, 4) % VOCABULARY


def loss_of(model: Any) -> Any:
    """Forward, and a loss."""
    tokens = batch()
    return nn.functional.cross_entropy(
        model(tokens).flatten(0, 1).float(), tokens.flatten()
    )


def optimizer_of(model: Any) -> torch.optim.Optimizer:
    """SGD with momentum, over what is trainable."""
    params = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def train(model: Any, steps: int = 3, micro_batches: int = 1) -> list[float]:
    """Plain training; the losses."""
    optimizer = optimizer_of(model)
    losses = []
    for _ in range(steps):
        for _ in range(micro_batches):
            loss = loss_of(model)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


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


class Failing(Block):
    """Raises at the second of its forwards."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it, or not."""
        self.calls += 1
        if self.calls == 2:
            raise ValueError("on purpose")
        return super().forward(x)


def exception() -> None:
    """A forward raises; the script recovers and goes on."""
    torch.manual_seed(0)
    model: Any = Model()
    model.layers[2] = Failing()
    sharded(model)
    optimizer = optimizer_of(model)
    for _ in range(4):
        try:
            loss_of(model).backward()
        except ValueError:
            model.reset_iter_state()
            continue
        optimizer.step()
        optimizer.zero_grad()


def two_optimizers() -> None:
    """Two optimizers per step, as for weights and biases."""
    model = sharded()
    weights = torch.optim.SGD([p for p in model.parameters() if p.ndim > 1], lr=0.1)
    biases = torch.optim.SGD([p for p in model.parameters() if p.ndim == 1], lr=0.1)
    for _ in range(3):
        loss_of(model).backward()
        weights.step()
        biases.step()
        model.zero_grad()


def optimizer_in_backward() -> None:
    """Each parameter's optimizer steps as soon as its gradient is there."""
    model = sharded()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(param: torch.Tensor) -> None:
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        loss_of(model).backward()


def stale_optimizer() -> None:
    """The optimizer was made before `fully_shard`, of parameters that are gone."""
    torch.manual_seed(0)
    model: Any = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sharded(model)
    for _ in range(2):
        loss_of(model).backward()
        optimizer.step()


def unmanaged() -> None:
    """The embedding is in no unit, the head is ignored on purpose."""
    torch.manual_seed(0)
    model: Any = Model()
    for layer in model.layers:
        fully_shard(layer)
    inner: Any = nn.Sequential(*model.layers)
    fully_shard(inner)
    fully_shard(model.head, ignored_params=set(model.head.parameters()))
    train(nn.Sequential(model.embed, inner, model.head))


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


def ddp() -> None:
    """DDP instead."""
    torch.manual_seed(0)
    train(nn.parallel.DistributedDataParallel(Model()))


def fsdp1() -> None:
    """FSDP1 instead."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.manual_seed(0)
    train(FullyShardedDataParallel(Model(), device_id=torch.device("cpu")))


def plain() -> None:
    """No wrapper at all, gradients accumulated over two micro-batches."""
    torch.manual_seed(0)
    train(Model(), micro_batches=2)


def host_events() -> None:
    """A loader that is slow, a collection, clipping, a checkpoint."""
    import gc
    import tempfile

    import torch.distributed.checkpoint

    dcp: Any = torch.distributed.checkpoint

    model = sharded()
    optimizer = optimizer_of(model)
    batches: Any = [batch()] * 3
    loader: Any = torch.utils.data.DataLoader(batches, batch_size=None)
    with tempfile.TemporaryDirectory() as folder:
        for tokens in loader:
            model(tokens).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            gc.collect()
            dcp.save({"model": model.state_dict()}, checkpoint_id=folder)


def user_steps() -> None:
    """The script says where steps end: every two optimizer steps."""
    import fsdpdoctor

    model = sharded()
    optimizer = optimizer_of(model)
    for _ in range(3):
        for _ in range(2):
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()
        fsdpdoctor.step()


def deleted() -> None:
    """A model that is gone before the next one is made."""
    for _ in range(2):
        train(sharded(), steps=2)


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
    user_steps,
    deleted,
)
FOUR_RANKS: tuple[Callable[[], None], ...] = (hybrid, sub_mesh, reshard_int)
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


def _bf16() -> Any:
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    return sharded(mp_policy=policy)


def _checkpointed(reentrant: bool) -> Any:
    torch.manual_seed(0)
    return sharded(Model(reentrant=reentrant))


IDENTICAL: dict[str, tuple[Callable[[], Any], int]] = {
    "fp32": (sharded, 1),
    "bf16": (_bf16, 1),
    "accumulation": (sharded, 3),
    "checkpoint": (functools.partial(_checkpointed, False), 1),
    "reentrant": (functools.partial(_checkpointed, True), 2),
}
"""Trainings that must give the same bits: a model, and its micro-batches."""


def _trained(make: Callable[[], Any], micro_batches: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = make()
    losses = train(model, steps=14, micro_batches=micro_batches)
    params = [p.full_tensor() for p in model.parameters()]
    return [torch.tensor(losses, dtype=torch.float64), *params]


def compare_all(folder: str) -> None:
    """Train each with and without a recorder; write which gave the same bits."""
    import json
    from pathlib import Path

    import fsdpdoctor

    same = {}
    for name, (make, micro_batches) in IDENTICAL.items():
        plain = _trained(make, micro_batches)
        with fsdpdoctor.record(Path(folder) / name):
            recorded = _trained(make, micro_batches)
        same[name] = all(map(torch.equal, plain, recorded))
    if dist.get_rank() == 0:
        (Path(folder) / "same.json").write_text(json.dumps(same))
