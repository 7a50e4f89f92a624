"""The gallery's network and its training loop.

Blocks compute by sleeping, so that a run's figures are the same on any machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdpdoctor.quantities import MS
from tests.models import LanguageModel, SleepBlock

LAYERS, WIDTH, VOCABULARY, TOKENS = 4, 256, 64, 16
STEPS = 8  # of each case, where it does not say otherwise
FORWARD_NS, BACKWARD_NS = 20 * MS, 40 * MS


def block(width: int = WIDTH, share: float = 1.0) -> SleepBlock:
    """One layer of `width` squared parameters; `share` of the usual compute."""
    return SleepBlock(
        width, round(FORWARD_NS * share), round(BACKWARD_NS * share), spins=[]
    )


class Wrapped(nn.Module):
    """A layer of the user's own kind: dynamo compiles no bare `nn.Linear`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the inner layer does."""
        y: torch.Tensor = self.inner(x)
        return y


class Net(LanguageModel):
    """Its loss is the mean square of the logits."""

    def __init__(
        self,
        layers: Iterable[nn.Module] | None = None,
        *,
        vocabulary: int = VOCABULARY,
        width: int = WIDTH,
    ) -> None:
        super().__init__(
            layers or (block(width) for _ in range(LAYERS)),
            vocabulary=vocabulary,
            width=width,
            bias=False,
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return super().forward(tokens).square().mean()

    def score(self, tokens: torch.Tensor) -> torch.Tensor:
        """The same by another name, as `generate` is in other models."""
        return self.forward(tokens)


class Fine(nn.Module):
    """A block of four small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(*(block(share=0.25) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All of them."""
        y: torch.Tensor = self.parts(x)
        return y


class Experts(nn.Module):
    """A router's block with two experts, both used."""

    def __init__(self) -> None:
        super().__init__()
        self.router = block(share=0.5)
        self.experts = nn.ModuleList(block(share=0.25) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through the router, then through both."""
        x = self.router(x)
        for expert in self.experts:
            x = expert(x)
        return x


class Adapted(nn.Module):
    """A frozen block and a small trainable adapter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.block = block().requires_grad_(False)
        self.down = nn.Linear(WIDTH, 8, bias=False)
        self.up = nn.Linear(8, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both."""
        y: torch.Tensor = self.block(x) + self.up(self.down(x))
        return y


class Scale(nn.Module):
    """A vector that scales its input: the smallest adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scaled."""
        return x * self.factor


class Scaled(nn.Module):
    """A frozen block and a scale after it."""

    def __init__(self) -> None:
        super().__init__()
        self.block = block().requires_grad_(False)
        self.scale = Scale()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        y: torch.Tensor = self.scale(self.block(x))
        return y


def sharded(model: Net | None = None, **options: Any) -> Any:
    """Each layer a unit, the rest in the root."""
    model = model or Net()
    for layer in model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def chained(model: Any, ahead: int = 1) -> Any:
    """Asynchronous unshards; each layer prefetches the one `ahead` of it in forward,
    and the one before it in backward.
    """
    model._set_unshard_async_op(True)
    layers = list(model.layers)
    for layer, target in zip(layers, layers[ahead:], strict=False):
        layer.set_modules_to_forward_prefetch([target])
    for before, layer in itertools.pairwise(layers):
        layer.set_modules_to_backward_prefetch([before])
    return model


def half_trained() -> Net:
    """Only the second half of its blocks is trained."""
    model = Net().requires_grad_(False)
    for layer in list(model.layers)[LAYERS // 2 :]:
        layer.requires_grad_(True)
    return model


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """SGD over what is trainable."""
    params = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(params, lr=1e-6)


def batch() -> torch.Tensor:
    """Tokens, the same ones each time."""
    return torch.arange(TOKENS) % VOCABULARY


def nothing(number: int) -> None:
    """Between two steps, or before a micro-batch."""


def train(
    model: Any,
    steps: int,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    batches: Iterable[torch.Tensor] | None = None,
    loss: Callable[[torch.Tensor], torch.Tensor] | None = None,
    micro_batches: int = 1,
    before: Callable[[int], None] = nothing,
    between: Callable[[int], None] = nothing,
) -> None:
    """A plain loop. `before` is called with each micro-batch, `between` with each
    step after its optimizer, so in the time of the next one.
    """
    optimizer = optimizer or sgd(model)
    run = model if loss is None else loss
    data = iter(itertools.repeat(batch()) if batches is None else batches)
    for step in range(steps):
        for micro_batch in range(micro_batches):
            before(micro_batch)
            run(next(data)).backward()
        optimizer.step()
        optimizer.zero_grad()
        between(step)
