"""The networks that tests and the gallery train, all small.

Sleeping blocks compute by sleeps of exact length, so that what a test expects does
not depend on how busy the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fsdpdoctor.rehearsal.modelled_work import cycles_per_ns, sleep_until

Spins = list[tuple[torch.cuda.Event, torch.cuda.Event]]
"""Where computing on a device is noted: each spin's start and end."""

_cuda: Any = torch.cuda  # its stubs type half of it


def compute(x: torch.Tensor, length_ns: int, spins: Spins) -> None:
    """Be busy for `length_ns`: the host on CPU, the current stream on CUDA."""
    if length_ns and x.is_cuda:
        start, end = (_cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        _cuda._sleep(round(length_ns * cycles_per_ns(x.device)))
        end.record()
        spins.append((start, end))
    elif length_ns:
        sleep_until(time.perf_counter_ns() + length_ns)


class _BusyBackward(torch.autograd.Function):
    """The identity, whose backward takes its time."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, length_ns: int, spins: Spins
    ) -> torch.Tensor:
        """Return `x`."""
        ctx.length_ns, ctx.spins = length_ns, spins
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the gradient, `length_ns` from now."""
        compute(grads[0], ctx.length_ns, ctx.spins)
        return grads[0], None, None


class SleepBlock(nn.Module):
    """A residual linear layer of `width` squared parameters, and a sleep.

    The sleep is the last thing that it does, in forward and in backward, so that
    its end is when the next unit is needed.
    """

    def __init__(
        self, width: int, forward_ns: int, backward_ns: int, spins: Spins
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.forward_ns = forward_ns
        self.backward_ns = backward_ns
        self.spins = spins

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute for `forward_ns`."""
        x = _BusyBackward.apply(x, self.backward_ns, self.spins)  # type: ignore[no-untyped-call]
        y: torch.Tensor = x + self.linear(x)
        compute(y, self.forward_ns, self.spins)
        return y


class Stack(nn.Module):
    """Blocks in a row. Its own head is the root's unit."""

    def __init__(self, blocks: list[nn.Module], width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.head = nn.Linear(width, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean square of the head's output: a loss."""
        for layer in self.layers:
            x = layer(x)
        loss: torch.Tensor = self.head(x).square().mean()
        return loss


def sleepers(
    count: int, width: int, forward_ns: int, backward_ns: int, spins: Spins
) -> Stack:
    """A model whose time is known: `count` blocks of `width` squared parameters."""
    torch.manual_seed(0)
    blocks = [SleepBlock(width, forward_ns, backward_ns, spins) for _ in range(count)]
    return Stack(list(blocks), width)


class MlpBlock(nn.Module):
    """A residual two-layer perceptron with a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As in a transformer."""
        y: torch.Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return x + y


def mlp(count: int, width: int) -> Stack:
    """`count` perceptron blocks."""
    torch.manual_seed(0)
    return Stack([MlpBlock(width) for _ in range(count)], width)


class AttentionBlock(nn.Module):
    """Self-attention, then a perceptron: a transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = MlpBlock(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As in a transformer."""
        y = self.norm(x)
        attended, _ = self.attention(y, y, y, need_weights=False)
        z: torch.Tensor = self.mlp(x + attended)
        return z


def transformer(count: int, width: int) -> Stack:
    """`count` transformer layers, without an embedding."""
    torch.manual_seed(0)
    return Stack([AttentionBlock(width) for _ in range(count)], width)


class LanguageModel(nn.Module):
    """Embedding, layers, head. Subclasses add what their tests need."""

    def __init__(
        self,
        layers: Iterable[nn.Module],
        *,
        vocabulary: int,
        width: int,
        norm: bool = False,
        bias: bool = True,
        reentrant: bool | None = None,
    ) -> None:
        """`norm` is before the head, whose `bias` may be left out; `reentrant` says
        how layers are checkpointed, None that they are not.
        """
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(layers)
        if norm:
            self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=bias)
        self.reentrant = reentrant

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(tokens)
        for layer in self.layers:
            if self.reentrant is None:
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=self.reentrant)
        if hasattr(self, "norm"):
            x = self.norm(x)
        logits: torch.Tensor = self.head(x)
        return logits
