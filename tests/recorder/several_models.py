"""Trainings of several models in one process, and of a pipeline's stages."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.recorder.small_model import Model, loss_of, sharded

STEPS = 4
CRITICS = 3
"""Steps of the critic before each of the generator."""


def _net() -> Any:
    """Two units, and a root that holds nothing."""
    model: Any = nn.Sequential(*(nn.Linear(8, 8) for _ in range(2)))
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def _two() -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(0)
    critic, generator = _net(), _net()
    return (
        critic,
        generator,
        torch.optim.SGD(critic.parameters(), lr=0.1),
        torch.optim.SGD(generator.parameters(), lr=0.1),
    )


def _criticise(critic: Any, generator: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    noise, real = torch.randn(2, 8), torch.randn(2, 8)
    (critic(real).mean() - critic(generator(noise).detach()).mean()).backward()
    optimizer.step()


def _generate(critic: Any, generator: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    critic(generator(torch.randn(2, 8))).mean().backward()
    optimizer.step()


def alternating() -> None:
    """A critic and a generator, each with an optimizer, in turn."""
    critic, generator, of_critic, of_generator = _two()
    for _ in range(STEPS):
        _criticise(critic, generator, of_critic)
        _generate(critic, generator, of_generator)


def several_critics() -> None:
    """The critic steps three times for each step of the generator."""
    critic, generator, of_critic, of_generator = _two()
    for _ in range(2):
        for _ in range(CRITICS):
            _criticise(critic, generator, of_critic)
        _generate(critic, generator, of_generator)


def teacher() -> None:
    """A second model that never trains, and follows the first."""
    model = sharded()
    follower = sharded(copy.deepcopy(Model())).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        with torch.no_grad():
            loss_of(follower)
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        follower.reshard()  # a root is left gathered, for a backward
        with torch.no_grad():
            pairs = zip(follower.parameters(), model.parameters(), strict=True)
            for old, new in pairs:
                old.lerp_(new, 0.1)


def own_optimizer() -> None:
    """Parameters are changed by hand."""
    model = sharded()
    for _ in range(STEPS):
        loss_of(model).backward()
        _by_hand(model)


def own_optimizer_accumulating() -> None:
    """The same, after two micro-batches, and gradients are zeroed late."""
    model = sharded()
    params = list(model.parameters())
    for _ in range(STEPS):
        for i in range(2):
            loss = loss_of(model)
            if i == 0:
                for param in params:
                    param.grad = None
            loss.backward()
        with torch.no_grad():
            for param in params:
                param.data.sub_(0.1 * param.grad)


def _by_hand(model: Any) -> None:
    with torch.no_grad():
        for param in model.parameters():
            param.sub_(0.1 * param.grad)
            param.grad = None


def _pipelined(make: Any, chunks: int = 1) -> None:
    from torch.distributed.pipelining import PipelineStage

    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    at, group = mesh["pp"].get_local_rank(), mesh["pp"].get_group()
    parts: list[Any] = []
    for _ in range(chunks):
        part: Any = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        for layer in part:
            fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=False)
        parts.append(fully_shard(part, mesh=mesh["dp"], reshard_after_forward=False))
    stages = [
        PipelineStage(part, at + 2 * i, 2 * chunks, torch.device("cpu"), group=group)
        for i, part in enumerate(parts)
    ]
    schedule = make(
        stages if chunks > 1 else stages[0], 4, loss_fn=nn.functional.mse_loss
    )
    optimizer = torch.optim.SGD([p for m in parts for p in m.parameters()], lr=0.1)
    for _ in range(STEPS):
        given = torch.randn(8, 8)
        if at == 0:
            schedule.step(given)
        else:
            schedule.step(target=given)
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()


def pipeline_all_forwards_first() -> None:
    """Four forwards, then four backwards."""
    from torch.distributed.pipelining import ScheduleGPipe

    _pipelined(ScheduleGPipe)


def pipeline_in_turn() -> None:
    """A forward, a backward, after a start."""
    from torch.distributed.pipelining import Schedule1F1B

    _pipelined(Schedule1F1B)


def pipeline_interleaved() -> None:
    """Two parts of the model on each rank."""
    from torch.distributed.pipelining import ScheduleInterleaved1F1B

    _pipelined(ScheduleInterleaved1F1B, chunks=2)


TWO_RANKS = (
    alternating,
    several_critics,
    teacher,
    own_optimizer,
    own_optimizer_accumulating,
)
FOUR_RANKS = (pipeline_all_forwards_first, pipeline_in_turn, pipeline_interleaved)
