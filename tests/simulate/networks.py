"""Networks whose compute is known: every block sleeps, on the host or on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fsdpdoctor.quantities import MS
from tests.models import SleepBlock

WIDTH, VOCABULARY, DEPTH = 128, 96, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a kind is built and trained."""

    device: str = "cpu"
    world_size: int = 8
    forward_ns: int = 4 * MS  # of a block
    backward_ns: int = 8 * MS


def block(place: Place, share: float = 1.0) -> SleepBlock:
    """A square matrix, and its time."""
    return SleepBlock(
        WIDTH, round(place.forward_ns * share), round(place.backward_ns * share), []
    )


class Row(nn.Module):
    """An embedding, if any, blocks in a row, and a head."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        *,
        embeds: bool = True,
        head: bool = True,
        reentrant: bool | None = None,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if embeds else nn.Identity()
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if head else nn.Identity()
        self.reentrant = reentrant
        self.skipped: set[int] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A loss."""
        x = self.embed(x)
        for at, layer in enumerate(self.layers):
            if at in self.skipped:
                continue
            if self.reentrant is None:
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=self.reentrant)
        loss: torch.Tensor = self.head(x).float().square().mean()
        return loss


class Around(nn.Module):
    """Work before and after an inner module, each half of a block's."""

    def __init__(
        self, inner: nn.Module, place: Place, *, before: bool, after: bool
    ) -> None:
        super().__init__()
        self.before = block(place, 0.5) if before else nn.Identity()
        self.inner = inner
        self.after = block(place, 0.5) if after else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through all three."""
        y: torch.Tensor = self.after(self.inner(self.before(x)))
        return y


class Several(nn.Module):
    """Several blocks in one, one after the other."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through all of them."""
        y: torch.Tensor = self.parts(x)
        return y


class Experts(nn.Module):
    """A router, and experts that all see everything."""

    def __init__(self, place: Place, count: int = 2) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, count, bias=False)
        self.experts = nn.ModuleList(block(place, 1 / count) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Weighed and summed."""
        weights = self.router(x).softmax(-1)
        y: torch.Tensor = x + sum(
            weights[..., at : at + 1] * expert(x)
            for at, expert in enumerate(self.experts)
        )
        return y


class Adapted(nn.Module):
    """A frozen block with a small trainable addition."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.base = block(place)
        self.base.requires_grad_(False)
        self.down = nn.Linear(WIDTH, 8, bias=False)
        self.up = nn.Linear(8, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both."""
        y: torch.Tensor = self.base(x) + self.up(self.down(x))
        return y


class TwoSided(nn.Module):
    """An encoder whose output every block of a decoder uses."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.ModuleList(block(place) for _ in range(3))
        self.decoder = nn.ModuleList(
            Around(nn.Identity(), place, before=True, after=True) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A loss."""
        y = seen = self.embed(x)
        for layer in self.encoder:
            seen = layer(seen)
        for layer in self.decoder:
            y = layer(y + seen)
        loss: torch.Tensor = self.head(y).float().square().mean()
        return loss


class Towers(nn.Module):
    """Two towers that meet in the loss."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.image = nn.ModuleList(block(place) for _ in range(3))
        self.text = nn.ModuleList(block(place, 0.5) for _ in range(3))
        self.scale = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A loss."""
        one = other = x
        for layer in self.image:
            one = layer(one)
        for layer in self.text:
            other = layer(other)
        loss: torch.Tensor = (self.scale(one) * other).float().mean()
        return loss


class Skips(nn.Module):
    """A U: what the first half makes is used again in the second, in reverse."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.entry = nn.Linear(WIDTH, WIDTH, bias=False)
        self.down = nn.ModuleList(block(place) for _ in range(3))
        self.up = nn.ModuleList(block(place) for _ in range(3))
        self.out = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A loss."""
        x = self.entry(x)
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
        for layer in self.up:
            x = layer(x + kept.pop())
        loss: torch.Tensor = self.out(x).float().square().mean()
        return loss


class Again(nn.Module):
    """Blocks that all run twice, one round after the other."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(block(place, 0.5) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A loss."""
        x = self.embed(x)
        for _ in range(2):
            for layer in self.layers:
                x = layer(x)
        loss: torch.Tensor = self.head(x).float().square().mean()
        return loss


class Pictures(nn.Module):
    """Patches of a picture through blocks, and the mean of what comes out."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.layers = nn.ModuleList(block(place) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A loss."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        loss: torch.Tensor = self.head(self.norm(x).mean(1)).square().mean()
        return loss


class Pair(nn.Module):
    """Two models, each sharded for itself, one after the other."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A loss of both."""
        y: torch.Tensor = self.first(x) + self.second(x)
        return y
