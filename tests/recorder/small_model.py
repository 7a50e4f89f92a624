"""A small model under FSDP2, and how it is trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    fully_shard,
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
