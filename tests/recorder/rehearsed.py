"""A small FSDP2 model as rank 0 of 2, recorded in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import fsdpdoctor
from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing
from tests.models import Stack, mlp
from tests.networks import uniform
from tests.rig.fake import one_thread


@contextmanager
def job() -> Iterator[None]:
    """Rank 0 of 2, on a wire that takes no time."""
    with one_thread(), rehearsing(Rehearsal(wire=uniform(1e12, 0), world_size=2)):
        dist.init_process_group("gloo")
        yield


@contextmanager
def recorded(folder: Path, every: int = 1) -> Iterator[None]:
    """The same, recorded as a user would."""
    with job(), fsdpdoctor.record(folder, every=every):
        yield


def sharded(model: Stack | None = None) -> Any:
    """Each block a unit, the head in the root."""
    model = model or mlp(2, 8)
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def train(model: Any, steps: int = 2) -> None:
    """Plain training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 8)).backward()
        optimizer.step()
        optimizer.zero_grad()
