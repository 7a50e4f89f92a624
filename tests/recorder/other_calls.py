"""Collectives of callers that are not FSDP2: optimizer, clipping, loader, script."""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
import torch.distributed as dist

from tests.recorder.small_model import batch, sharded


class Gathering(torch.optim.SGD):
    """Needs whole gradients, as Muon does."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Gather each, and step."""
        for param in self.param_groups[0]["params"]:
            param.grad.full_tensor()
        super().step(closure)


def clip_by_hand(model: Any) -> torch.Tensor:
    """The norm of all gradients, with a collective of the script's own."""
    local = torch.stack([p.grad.to_local().square().sum() for p in model.parameters()])
    total = local.sum()
    dist.all_reduce(total)
    return total.sqrt()


def next_batch() -> torch.Tensor:
    """Rank 0 says which."""
    said = [0]
    dist.broadcast_object_list(said)
    return batch()


def other_calls() -> None:
    """Collectives of every caller that is not FSDP2."""
    model = sharded()
    optimizer = Gathering(model.parameters(), lr=0.01)
    rank = dist.get_rank()
    for _ in range(3):
        model(next_batch()).sum().backward()
        clip_by_hand(model)
        optimizer.step()
        optimizer.zero_grad()
        metric = torch.ones(1)
        work = dist.all_reduce(metric, async_op=True)
        time.sleep(0.02)
        work.wait()
        if rank == 0:
            dist.send(metric, 1)
        else:
            dist.recv(metric, 0)
        dist.barrier(dist.group.WORLD)


def base_calls() -> None:
    """The script's own, of the operators that FSDP2 calls for each unit."""
    model = sharded()
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    functional = torch.ops._c10d_functional
    one, two = torch.ones(1), torch.ones(2)
    for _ in range(3):
        model(batch()).sum().backward()
        model.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer versions have other names for them
            dist.all_gather_into_tensor(two, one)
            work = dist.reduce_scatter_tensor(one, two, async_op=True)
        work.wait()
        found = functional.all_gather_into_tensor_out(one, 2, name, out=two)
        functional.wait_tensor(found)
