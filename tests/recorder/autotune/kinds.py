"""Trainings of many kinds, whose every bit must be the same however they are tuned."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.recorder.small_model import VOCABULARY, WIDTH, Model

Step = Callable[[int], list[torch.Tensor]]
"""Trains one step, and returns its losses."""


def batch(number: int) -> torch.Tensor:
    """Other tokens in each step, and on each rank."""
    seed = 1000 * number + dist.get_rank()
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (3, 4), generator=chance)


def loss_of(model: Any, number: int) -> Any:
    """Forward, and a loss."""
    tokens = batch(number)
    logits = model(tokens).flatten(0, 1).float()
    return nn.functional.cross_entropy(logits, tokens.flatten())


def adam(params: Any) -> torch.optim.Optimizer:
    """An optimizer in which an old parameter would show at once."""
    return torch.optim.AdamW([p for p in params if p.requires_grad], lr=0.01)


def sharded(model: Any | None = None, **options: Any) -> Any:
    """A unit for each block, and the root."""
    model = model or Model()
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    return model


def stepping(
    model: Any, *optimizers: torch.optim.Optimizer, micro_batches: int = 1
) -> Step:
    """The usual loop."""
    chosen = optimizers or (adam(model.parameters()),)

    def step(number: int) -> list[torch.Tensor]:
        losses = []
        for micro_batch in range(micro_batches):
            loss = loss_of(model, 10 * number + micro_batch)
            loss.backward()
            losses.append(loss.detach())
        for optimizer in chosen:
            optimizer.step()
        return losses

    return step


Made = tuple[Any, Step]


def plain() -> Made:
    """One forward, one backward."""
    model = sharded()
    return model, stepping(model)


def bf16() -> Made:
    """Parameters are gathered in another dtype."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    model = sharded(mp_policy=policy)
    return model, stepping(model)


def accumulation() -> Made:
    """Gradients are reduced in each of three micro-batches."""
    model = sharded()
    return model, stepping(model, micro_batches=3)


def keeping() -> Made:
    """Parameters stay gathered, and gradients unreduced, until the last one."""
    model = sharded()
    optimizer = adam(model.parameters())

    def step(number: int) -> list[torch.Tensor]:
        losses = []
        for micro_batch in range(3):
            last = micro_batch == 2
            model.set_requires_gradient_sync(last)
            model.set_reshard_after_backward(last)
            model.set_is_last_backward(last)
            loss = loss_of(model, 10 * number + micro_batch)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return losses

    return model, step


def checkpointed(*, reentrant: bool) -> Made:
    """Each block is computed again in backward."""
    model = sharded(Model(reentrant=reentrant))
    return model, stepping(model)


def hsdp() -> Made:
    """Replicas of shards; of two ranks, a replica each."""
    shape = (2, dist.get_world_size() // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    model = sharded(mesh=mesh)
    return model, stepping(model)


class Adapted(nn.Module):
    """A frozen layer, and two small ones beside it that are trained."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output, adapted."""
        out: torch.Tensor = self.inner(x) + self.up(self.down(x))
        return out


def lora() -> Made:
    """Low-rank adapters of frozen blocks."""
    model: Any = Model().requires_grad_(False)
    for layer in model.layers:
        layer.a, layer.b = Adapted(layer.a), Adapted(layer.b)
    sharded(model)
    return model, stepping(model)


class Experts(nn.Module):
    """Four experts, of which a router takes one for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each expert computes for all; what counts is masked."""
        weights = self.router(x).softmax(-1)
        chosen = nn.functional.one_hot(weights.argmax(-1), 4) * weights
        out = x
        for at, expert in enumerate(self.experts):
            out = out + expert(x) * chosen[..., at, None]
        return out


def moe() -> Made:
    """Blocks of experts, the experts a unit of their own."""
    model: Any = Model()
    for at in range(len(model.layers)):
        block = Experts()
        model.layers[at] = block
        fully_shard(block.experts[0])
    sharded(model)
    return model, stepping(model)


def compiled() -> Made:
    """Blocks run as dynamo traced them."""
    model: Any = Model()
    for layer in model.layers:
        layer.compile(backend="eager")
    sharded(model)
    return model, stepping(model)


def two_optimizers() -> Made:
    """Layers and the rest each have their own."""
    model = sharded()
    inner = {id(p) for p in model.layers.parameters()}
    rest = [p for p in model.parameters() if id(p) not in inner]
    return model, stepping(model, adam(model.layers.parameters()), adam(rest))


def evaluation() -> Made:
    """Passes without gradients, after the step and between backward and optimizer."""
    model = sharded()
    optimizer = adam(model.parameters())

    def step(number: int) -> list[torch.Tensor]:
        loss = loss_of(model, number)
        loss.backward()
        with torch.no_grad():
            before = loss_of(model, -1)
        optimizer.step()
        with torch.no_grad():
            after = loss_of(model, -1)
            model.layers[0](torch.ones(1, WIDTH))
        return [loss.detach(), before, after]

    return model, step


def skipped() -> Made:
    """Every third step computes no backward, and the optimizer steps all the same."""
    model = sharded()
    optimizer = adam(model.parameters())

    def step(number: int) -> list[torch.Tensor]:
        loss = loss_of(model, number)
        if number % 3:
            loss.backward()
        else:
            # FSDP2 has a pass begun until its backward: this one has none.
            loss = loss.detach()
        optimizer.step()
        return [loss.detach()]

    return model, step


KINDS: dict[str, Callable[[], Made]] = {
    "plain": plain,
    "bf16": bf16,
    "accumulation": accumulation,
    "keeping": keeping,
    "checkpoint": functools.partial(checkpointed, reentrant=False),
    "reentrant": functools.partial(checkpointed, reentrant=True),
    "hsdp": hsdp,
    "lora": lora,
    "moe": moe,
    "compiled": compiled,
    "two optimizers": two_optimizers,
    "evaluation": evaluation,
    "skipped": skipped,
}


BLOCKS = [f"layers.{at}" for at in range(4)]
LISTS = {
    name: {"forward_prefetch": BLOCKS[at + 1 : at + 3], "backward_prefetch": []}
    for at, name in enumerate(BLOCKS)
}
GATHERED = {name: {"reshard_after_forward": False} for name in BLOCKS}
BOTH = {name: {**LISTS[name], **GATHERED[name]} for name in BLOCKS}
TRIED: dict[str, dict[str, Any]] = {
    "lists": {"units": LISTS, "unshard_async_op": True},
    "gathered": {"units": GATHERED, "max_input_buffers": 2},
    "both": {"units": BOTH, "unshard_async_op": True},
}
"""What may be tried of each. The second is kept; so that the third is tried on top of
what is kept.
"""


def trained(make: Callable[[], Made], steps: int) -> list[str]:
    """Each step's losses and gradients, and the parameters after the last one."""
    torch.manual_seed(0)
    model, step = make()
    params = list(model.parameters())  # its shards; later some may be gathered
    said = []
    for number in range(steps):
        losses = step(number)
        said.append(digest([*losses, *_gradients(params)]))
        for param in params:
            param.grad = None
    return [*said, digest(param.to_local() for param in params)]


def _gradients(params: list[Any]) -> Iterator[torch.Tensor]:
    return (p.grad.to_local() for p in params if p.grad is not None)


def digest(tensors: Any) -> str:
    """Of every bit of them."""
    found = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().contiguous().flatten().view(torch.uint8)
        found.update(plain.numpy().tobytes())
    return found.hexdigest()[:16]
