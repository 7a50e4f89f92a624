"""Trainings that are special in what stands around FSDP2: optimizers, other wrappers,
the host, and the user's own calls.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    fully_shard,
)

from tests.recorder.small_model import (
    Block,
    Model,
    batch,
    loss_of,
    optimizer_of,
    sharded,
    train,
)


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
