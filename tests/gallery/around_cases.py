"""Cases with something wrong around the model: input, collector, optimizer, files."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch.utils.data import DataLoader, Dataset

from tests.gallery.network import (
    STEPS,
    Net,
    batch,
    chained,
    sgd,
    sharded,
    train,
)

dcp: Any = torch.distributed.checkpoint  # its functions have no types


class _Samples(Dataset[torch.Tensor]):
    """Batches that take their time to be made."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return batch()


def _loader(seconds: float) -> DataLoader[torch.Tensor]:
    return DataLoader(_Samples(seconds), batch_size=None)


def slow_loader() -> None:
    """Making a batch takes 30 ms, in the training process."""
    train(chained(sharded()), STEPS, batches=_loader(0.030))


def fast_loader() -> None:
    """Making a batch takes 1 ms."""
    train(chained(sharded()), STEPS, batches=_loader(0.001))


def garbage() -> None:
    """All garbage is collected in every step, of a heap with many objects."""
    kept = [[number] for number in range(300_000)]
    train(chained(sharded()), STEPS, between=lambda step: _ignore(gc.collect()))
    del kept


def frozen_garbage() -> None:
    """The same heap, set aside before training, and only the young collected."""
    kept = [[number] for number in range(300_000)]
    gc.collect()
    gc.freeze()
    train(chained(sharded()), STEPS, between=lambda step: _ignore(gc.collect(0)))
    del kept


def _ignore(_found: int) -> None:
    """For functions whose result says nothing here."""


def slow_optimizer() -> None:
    """The optimizer takes 30 ms, as a loop over DTensors does on a slow host."""
    model = chained(sharded())
    optimizer = sgd(model)
    optimizer.register_step_pre_hook(lambda *_: time.sleep(0.030))
    train(model, STEPS, optimizer=optimizer)


def slow_script() -> None:
    """Between two steps the script does something of its own for 150 ms."""
    train(chained(sharded()), STEPS, between=lambda step: time.sleep(0.150))


def short_script() -> None:
    """The same for 8 ms."""
    train(chained(sharded()), STEPS, between=lambda step: time.sleep(0.008))


class _WholeGradients(torch.optim.SGD):
    """Needs whole gradients, as Muon does, and takes them one at a time."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Gather each, and step."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.grad.full_tensor()
        super().step(closure)


def gathering_optimizer() -> None:
    """The optimizer gathers every gradient, one after the other."""
    model = chained(sharded())
    train(model, STEPS, optimizer=_WholeGradients(model.parameters(), lr=0.1))


def norm_by_hand() -> None:
    """One small all-reduce per step: the norm of all gradients."""
    model = chained(sharded())
    optimizer = sgd(model)

    def clip(*_: Any) -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        total = torch.stack([g.to_local().square().sum() for g in grads]).sum()
        dist.all_reduce(total)

    optimizer.register_step_pre_hook(clip)
    train(model, STEPS, optimizer=optimizer)


def checkpoints() -> None:
    """A distributed checkpoint after every second step."""
    model = sharded()
    with tempfile.TemporaryDirectory() as folder:

        def save(step: int) -> None:
            if step % 2:
                state = {"model": model.state_dict()}
                dcp.save(state, checkpoint_id=f"{folder}/{step}")

        train(model, STEPS, between=save)
        dist.barrier()


def async_checkpoints() -> None:
    """The same, saved in the background, over a process group of its own."""
    model = sharded()
    group = dist.new_group()
    under_way: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:

        def save(step: int) -> None:
            if step % 2:
                state = {"model": model.state_dict()}
                place = f"{folder}/{step}"
                under_way.append(
                    dcp.async_save(state, checkpoint_id=place, process_group=group)
                )

        train(model, STEPS, between=save)
        for future in under_way:
            future.result()
        dist.barrier()


def killed() -> None:
    """Rank 1 is killed in the backward of step 6."""
    model = sharded()
    step = 0

    def die(grad: torch.Tensor) -> None:
        if dist.get_rank() == 1 and step == 6:
            os.kill(os.getpid(), signal.SIGKILL)

    def count(done: int) -> None:
        nonlocal step
        step = done + 1

    model.layers[2].register_full_backward_pre_hook(lambda module, grads: die(grads))
    train(model, STEPS, between=count)


def early_optimizer() -> None:
    """The optimizer is built before fully_shard."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    train(sharded(model), STEPS, optimizer=optimizer)
