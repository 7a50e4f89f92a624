"""Trains what no unit covers, with advice pasted in: outside_job.py WAY [CODE].

Each rank has data of its own. Prints each step's loss, and at the end what each
trainable parameter has come to on this rank. `averaged` is the truth: nothing is
sharded, and all gradients are averaged.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

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
    said,
    sharded,
    tokens_of,
)

STEPS = 5


class Prompted(nn.Module):
    """A decoder behind a vector that learns."""

    def __init__(self, inner: Decoder) -> None:
        super().__init__()
        self.inner = inner
        self.prompt = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits, moved by the prompt."""
        logits: torch.Tensor = self.inner(tokens)
        return logits * (1 + self.prompt.sum())


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


def built(way: str, *, shard: bool) -> nn.Module:
    """The model, with its parts sharded as the user did."""
    inner = Decoder(layers=2)
    model: nn.Module = inner
    if way == "blocks" and shard:
        for block in inner.blocks:
            fully_shard(block)
    elif way == "prompt":
        if shard:
            sharded(inner)
        model = Prompted(inner)
    elif way == "injected":
        if shard:
            sharded(inner)
        blocks: Any = inner.blocks
        for block in blocks:
            block.out = Adapted(block.out)
    return model


def average(model: nn.Module) -> None:
    """All gradients, by hand."""
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def main() -> None:
    """Train, and say what came of it."""
    way, averaged, code = sys.argv[1], sys.argv[2] == "averaged", ""
    if len(sys.argv) > 3:
        code = Path(sys.argv[3]).read_text("utf-8")
    begin()
    model = built(way, shard=not averaged)
    scope: dict[str, Any] = {"model": model}
    early = "before the optimizer is built" in code
    if early:
        exec(code, scope)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    own_data()
    for at in range(STEPS):
        loss: Any = loss_of(model, tokens_of())
        loss.backward()
        if averaged:
            average(model)
        if code and not early:
            exec(code, scope)
        optimizer.step()
        optimizer.zero_grad()
        said(at, loss)
    for name, p in model.named_parameters():
        value: Any = p.detach()
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        sys.stdout.write(f"{name} {whole.double().square().sum().item()!r}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
