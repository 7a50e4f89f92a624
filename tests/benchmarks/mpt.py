"""MPT models under FSDP2, trained as llm-foundry's benchmark page describes.

Learned positions, a GELU MLP of four times the width, LayerNorm in low precision, a
tied embedding, blocks sharded one by one, a gradient reduction in each micro-batch.
"""

# ruff: noqa: D102
# mypy: ignore-errors

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One model."""

    width: int
    heads: int
    layers: int
    vocabulary: int
    length: int


class Attention(nn.Module):
    """One product for queries, keys and values; flash attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = (
            nn.LayerNorm(width, bias=False),
            nn.LayerNorm(width, bias=False),
        )
        self.attention = Attention(width, heads)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Mpt(nn.Module):
    """The model; its head is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(
            Block(shape.width, shape.heads) for _ in range(shape.layers)
        )
        self.norm = nn.LayerNorm(shape.width, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def build(shape: Shape, *, checkpointed: bool, reduce: torch.dtype) -> nn.Module:
    """The model, sharded."""
    with torch.device("meta"):
        model = Mpt(shape)
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
    for i, block in enumerate(model.blocks):
        if checkpointed:
            block = checkpoint_wrapper(block, preserve_rng_state=False)
            model.blocks[i] = block
        fully_shard(block, mp_policy=mixed)
    fully_shard(model, mp_policy=mixed)
    return model.to_empty(device="cuda")


def step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    shape: Shape,
    micro_batch: int,
    micro_batches: int,
) -> None:
    """One optimizer step."""
    for _ in range(micro_batches):
        tokens = torch.randint(
            0, shape.vocabulary, (micro_batch, shape.length), device="cuda"
        )
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(0, 1))
        del logits
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
