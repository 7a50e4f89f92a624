"""What the scripts beside it train: a small decoder, and how it is sharded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

VOCABULARY, WIDTH, LENGTH = 256, 96, 48


class Block(nn.Module):
    """Attention and a feed-forward part, both with a residual."""

    def __init__(self, width: int = WIDTH, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        rows, length, width = x.shape
        parts = self.qkv(self.ln_1(x)).view(rows, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        y = self.down(F.gelu(self.up(self.ln_2(x))))
        return x + y


class Decoder(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, layers: int = 3, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(layers))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each position."""
        x = self.wte(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.lm_head(self.ln_f(x))
        return logits


def begin(*, timeout_s: float | None = None) -> None:
    """One thread, a group, and the same start on all ranks."""
    torch.set_num_threads(1)
    if timeout_s is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    torch.manual_seed(0)


def sharded(model: Decoder, mesh: DeviceMesh | None = None, **given: Any) -> Decoder:
    """Each block a unit, the rest in the root."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **given)
    fully_shard(model, mesh=mesh, **given)
    return model


def tokens_of(rows: int = 4, length: int = LENGTH) -> torch.Tensor:
    """Made up."""
    return torch.randint(0, VOCABULARY, (rows, length + 1))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Of the next token."""
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def step(
    model: nn.Module,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    tokens: torch.Tensor | None = None,
    before: Callable[[], object] = lambda: None,
) -> torch.Tensor:
    """One step, with something done before the optimizer."""
    loss = loss_of(model, tokens_of() if tokens is None else tokens)
    loss.backward()
    before()
    if isinstance(optimizers, torch.optim.Optimizer):
        optimizers = [optimizers]
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


def own_data() -> None:
    """From here on each rank draws batches of its own."""
    torch.manual_seed(1 + dist.get_rank())


def say(at: int, loss: torch.Tensor) -> None:
    """On the first rank."""
    if dist.get_rank() == 0:
        print(f"step {at} loss {loss.item():.4f}", flush=True)


def said(at: int, loss: torch.Tensor) -> None:
    """To the bit."""
    print(at, repr(loss.item()), flush=True)
