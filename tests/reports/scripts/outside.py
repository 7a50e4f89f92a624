"""Trainable parameters that no unit covers: outside.py WAY (2 ranks)."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.rig.scripts.decoder import (
    WIDTH,
    Decoder,
    begin,
    loss_of,
    own_data,
    say,
    sharded,
    tokens_of,
)


class Prompted(nn.Module):
    """A frozen decoder behind a few vectors that learn."""

    def __init__(self, inner: Decoder) -> None:
        super().__init__()
        self.inner = inner
        self.prompt = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits, moved by the prompt."""
        logits: torch.Tensor = self.inner(tokens)
        return logits * (1 + self.prompt.mean())


class Adapted(nn.Module):
    """A linear layer with an adapter beside it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.down = nn.Linear(WIDTH, 4, bias=False)
        self.up = nn.Linear(4, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both."""
        y: torch.Tensor = self.inner(x) + self.up(self.down(x))
        return y


def built(way: str) -> nn.Module:
    """The model, sharded."""
    model = Decoder()
    if way == "only-blocks":
        for block in model.blocks:
            fully_shard(block)
        return model
    if way.startswith("prompt"):
        sharded(model.requires_grad_(False))
        return Prompted(model)
    if way == "injected":
        sharded(model.requires_grad_(False))
        for block in model.blocks:
            block.out = Adapted(block.out)
        return model
    if way == "injected-first":
        model.requires_grad_(False)
        for block in model.blocks:
            block.out = Adapted(block.out)
        return sharded(model)
    raise SystemExit(f"no such way: {way}")


def average(p: torch.Tensor) -> None:
    """As soon as a gradient is there."""
    assert p.grad is not None
    dist.all_reduce(p.grad)
    p.grad.div_(dist.get_world_size())


way = sys.argv[1]
begin()
model = built(way)
learning = [p for p in model.parameters() if p.requires_grad]
if way == "prompt-averaged":
    for p in learning:
        p.register_post_accumulate_grad_hook(average)
optimizer = torch.optim.AdamW(learning, lr=1e-3)
own_data()
for at in range(9):
    loss = loss_of(model, tokens_of())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    say(at, loss.detach())
dist.destroy_process_group()
