"""Several models, passes or stages in one process: several.py WAY."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from tests.rig.scripts.decoder import (
    Decoder,
    begin,
    loss_of,
    own_data,
    said,
    sharded,
    tokens_of,
)

STEPS = 8


def layers(count: int = 3) -> nn.Module:
    """A network of vectors."""
    parts = [
        nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        for _ in range(count)
    ]
    for part in parts:
        fully_shard(part)
    return fully_shard(nn.Sequential(*parts))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Of all its parameters."""
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def two_optimizers() -> None:
    """Matrices and the rest, stepped together."""
    model = sharded(Decoder())
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim != 2]
    optimizers = [torch.optim.SGD(matrices, lr=1e-2), torch.optim.AdamW(rest, lr=1e-3)]
    own_data()
    for at in range(STEPS):
        loss = loss_of(model, tokens_of())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        said(at, loss)


def adversaries() -> None:
    """Two models stepped in turn."""
    maker, judge = layers(), layers()
    of_maker, of_judge = adam(maker), adam(judge)
    own_data()
    for at in range(STEPS):
        noise = torch.randn(4, 32)
        of_judge.zero_grad()
        loss = judge(torch.randn(4, 32)).mean() - judge(maker(noise).detach()).mean()
        loss.backward()
        of_judge.step()
        of_maker.zero_grad()
        loss = judge(maker(noise)).mean()
        loss.backward()
        of_maker.step()
        said(at, loss)


def reference() -> None:
    """A frozen model's answers, without gradients."""
    model, other = layers(), layers().requires_grad_(False)
    optimizer = adam(model)
    own_data()
    for at in range(STEPS):
        x = torch.randn(4, 32)
        with torch.no_grad():
            wanted = other(x)
        loss = F.mse_loss(model(x), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said(at, loss)


def generated() -> None:
    """The model's own samples, then one pass with gradients over them."""
    model = sharded(Decoder())
    optimizer = adam(model)
    own_data()
    for at in range(STEPS):
        tokens = tokens_of(2, 8)
        with torch.no_grad():
            for _ in range(4):
                following = model(tokens)[:, -1:].argmax(-1)
                tokens = torch.cat((tokens, following), 1)
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said(at, loss)


def preferred() -> None:
    """Two passes, chosen and rejected, before one backward."""
    model = sharded(Decoder())
    optimizer = adam(model)
    own_data()
    for at in range(STEPS):
        loss = F.softplus(loss_of(model, tokens_of(2)) - loss_of(model, tokens_of(2)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said(at, loss)


def sharpened() -> None:
    """Two forwards and two backwards a step, the second at a moved point."""
    model = sharded(Decoder())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    own_data()
    for at in range(STEPS):
        tokens = tokens_of()
        loss_of(model, tokens).backward()
        moves = []
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                moves.append(p.grad * 1e-3)
                p.add_(moves[-1])
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        said(at, loss)


def actor_and_critic() -> None:
    """Two models, two optimizers, both stepped at the end."""
    actor, critic = layers(), layers(2)
    optimizers = [adam(actor), adam(critic)]
    own_data()
    for at in range(STEPS):
        x = torch.randn(4, 32)
        action = actor(x)
        loss = critic(action).mean() + action.square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        said(at, loss)


def schedule(kind: Any) -> None:
    """Two stages, each sharded over half of the ranks; four micro-batches."""
    shape = (2, dist.get_world_size() // 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("pp", "dp"))
    stage_at = mesh["pp"].get_local_rank()
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(2)])
    for part in model:
        fully_shard(part, mesh=mesh["dp"], reshard_after_forward=False)
    fully_shard(model, mesh=mesh["dp"], reshard_after_forward=False)
    group = mesh["pp"].get_group()
    stage = PipelineStage(model, stage_at, 2, torch.device("cpu"), group=group)
    run = kind(stage, 4, loss_fn=lambda o, t: (o - t).pow(2).mean())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    own_data()
    for at in range(STEPS):
        x, losses = torch.randn(8, 64), []
        if stage_at == 0:
            run.step(x)
        else:
            run.step(target=x, losses=losses)
            said(at, torch.stack(losses).mean())
        optimizer.step()
        optimizer.zero_grad()


def tensor_parallel() -> None:
    """Feed-forward layers split over pairs, the rest sharded over the others."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = Decoder(layers=2)
    for block in model.blocks:
        plan: Any = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh["tp"], plan)
    sharded(model, mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    torch.manual_seed(1 + mesh["dp"].get_local_rank())
    for at in range(STEPS):
        loss = loss_of(model, tokens_of())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said(at, loss)


WAYS: dict[str, Callable[[], None]] = {
    "two-optimizers": two_optimizers,
    "adversaries": adversaries,
    "reference": reference,
    "generated": generated,
    "preferred": preferred,
    "sharpened": sharpened,
    "actor-and-critic": actor_and_critic,
    "gpipe": lambda: schedule(ScheduleGPipe),
    "1f1b": lambda: schedule(Schedule1F1B),
    "tensor-parallel": tensor_parallel,
}

if __name__ == "__main__":
    begin()
    WAYS[sys.argv[1]]()
    dist.destroy_process_group()
