"""Models as people shard them, in one plain loop: models.py WAY."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from tests.rig.scripts.decoder import (
    WIDTH,
    Block,
    Decoder,
    begin,
    loss_of,
    own_data,
    sharded,
    tokens_of,
)

STEPS = 8


class Checkpointed(Block):
    """Its forward runs again in backward."""

    reentrant = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the block."""
        again: Any = super().forward
        y: torch.Tensor = checkpoint(again, x, use_reentrant=self.reentrant)
        return y


class Reentrant(Checkpointed):
    """The same, the older way."""

    reentrant = True


class Tied(Decoder):
    """The head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.lm_head.weight = self.wte.weight


class Recurrent(Decoder):
    """One block, passed three times."""

    def __init__(self) -> None:
        super().__init__(layers=1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.wte(tokens)
        for _ in range(3):
            x = self.blocks[0](x)
        logits: torch.Tensor = self.lm_head(self.ln_f(x))
        return logits


class LowRank(nn.Module):
    """An adapter beside a frozen layer."""

    def __init__(self, inner: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.lora_a = nn.Linear(inner.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, inner.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both."""
        y: torch.Tensor = self.inner(x) + self.lora_b(self.lora_a(x))
        return y


class Mixture(nn.Module):
    """Four experts, all of them asked."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.randn(4, width, width) * width**-0.5)

    def forward(self, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Their weighted sum."""
        parts = torch.einsum("bsd,edh->bseh", x, self.inner)
        return (parts * shares.unsqueeze(-1)).sum(2)


class Routed(nn.Module):
    """A block with experts behind it, and their router."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.attention = Block(width)
        self.router = nn.Linear(width, 4)
        self.experts = Mixture(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A mixture."""
        x = self.attention(x)
        mixed: torch.Tensor = self.experts(x, self.router(x).softmax(-1))
        return x + mixed


class Towers(nn.Module):
    """An image's patches go before the text."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.vision = nn.ModuleList(Block() for _ in range(2))
        self.project = nn.Linear(WIDTH, WIDTH)
        self.text = Decoder(layers=2)
        if frozen:
            self.vision.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits, moved by the image."""
        x = torch.ones(tokens.shape[0], 8, WIDTH)
        for block in self.vision:
            x = block(x)
        logits: torch.Tensor = self.text(tokens)
        return logits * (1 + self.project(x).mean())


class Pair(nn.Module):
    """An encoder, and a decoder that adds what it made."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(Block() for _ in range(2))
        self.decoder = Decoder(layers=2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.decoder.wte(tokens)
        for block in self.encoder:
            x = block(x)
        logits: torch.Tensor = self.decoder(tokens)
        return logits + x.mean()


def lora() -> Decoder:
    """Adapters in each block; the rest is frozen."""
    model = Decoder().requires_grad_(False)
    for block in model.blocks:
        block.qkv, block.out = LowRank(block.qkv), LowRank(block.out)
    return sharded(model)


def experts() -> Decoder:
    """Experts over a mesh of their own."""
    ranks = dist.get_world_size()
    dense = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
    sparse = init_device_mesh("cpu", (ranks,), mesh_dim_names=("ep",))
    model = Decoder(layers=2, block=Routed)
    for block in model.blocks:
        fully_shard(block.experts, mesh=sparse)
        fully_shard(block, mesh=dense)
    fully_shard(model, mesh=dense)
    return model


def towers(*, frozen: bool) -> nn.Module:
    """Units in both towers, the rest in the root."""
    model = Towers(frozen=frozen)
    for block in (*model.vision, *model.text.blocks):
        fully_shard(block)
    return fully_shard(model)


def pair() -> nn.Module:
    """Units in both halves."""
    model = Pair()
    for block in (*model.encoder, *model.decoder.blocks):
        fully_shard(block)
    return fully_shard(model)


def grouped() -> Decoder:
    """Two blocks as one unit; norm and head as another."""
    model = Decoder(layers=4)
    blocks = list(model.blocks)
    fully_shard(blocks[:2])
    fully_shard(blocks[2:])
    fully_shard([model.ln_f, model.lm_head], reshard_after_forward=False)
    fully_shard(model)
    return model


def fine() -> Decoder:
    """Each linear layer a unit in its block's."""
    model = Decoder(layers=2)
    for block in model.blocks:
        for part in (block.qkv, block.out, block.up, block.down):
            fully_shard(part)
        fully_shard(block)
    return fully_shard(model)


def hybrid() -> Decoder:
    """Sharded over pairs, replicated over them."""
    names = ("replicate", "shard")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    return sharded(Decoder(), mesh)


def compiled() -> Decoder:
    """Each block compiled in place."""
    model = Decoder(layers=2)
    for block in model.blocks:
        block.compile(backend="eager")
    return sharded(model)


def wrapped() -> Decoder:
    """Torch's own wrapper around each block."""
    model = Decoder()
    for at, block in enumerate(model.blocks):
        model.blocks[at] = checkpoint_wrapper(block)
    return sharded(model)


WAYS: dict[str, Callable[[], nn.Module]] = {
    "checkpointed": lambda: sharded(Decoder(block=Checkpointed)),
    "reentrant": lambda: sharded(Decoder(block=Reentrant)),
    "wrapped": wrapped,
    "tied": lambda: sharded(Tied()),
    "recurrent": lambda: sharded(Recurrent()),
    "lora": lora,
    "experts": experts,
    "towers": lambda: towers(frozen=False),
    "frozen-tower": lambda: towers(frozen=True),
    "pair": pair,
    "grouped": grouped,
    "fine": fine,
    "whole": lambda: fully_shard(Decoder()),
    "hybrid": hybrid,
    "compiled": compiled,
}

if __name__ == "__main__":
    begin()
    model = WAYS[sys.argv[1]]()
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=1e-3)
    own_data()
    for at in range(STEPS):
        loss = loss_of(model, tokens_of())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(at, repr(loss.item()), flush=True)
    dist.destroy_process_group()
