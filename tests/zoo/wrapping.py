"""B: where units begin and end."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.zoo.entry import Entry, Untold
from tests.zoo.job import (
    Block,
    Decoder,
    Job,
    Moment,
    Tensor,
    by_block,
    chain,
    root_only,
    trained,
    with_tables,
)
from tests.zoo.situations import but, rehearsed


class Heads(nn.Module):
    """Attention whose heads are modules, and an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.heads = nn.ModuleList(
            nn.Linear(width, width // 8, bias=False) for _ in range(8)
        )
        self.mlp = Block(width)

    def forward(self, x: Tensor) -> Tensor:
        """Heads side by side, then the MLP."""
        y = self.norm(x)
        x = x + torch.cat([head(y) for head in self.heads], dim=-1)
        z: Tensor = self.mlp(x)
        return z


def headed(job: Job) -> nn.Module:
    """Layers with a module a head."""
    return Decoder(job, [Heads(job.width) for _ in range(job.blocks)])


def each_part(model: Any, job: Job) -> None:
    """Every MLP and every head a unit."""
    for layer in model.layers:
        for part in (*layer.heads, layer.mlp):
            fully_shard(part, **job.options())
    fully_shard(model, **job.options())


def each_linear(model: Any, job: Job) -> None:
    """Every module with parameters of its own a unit."""
    for layer in model.layers:
        for part in (layer.norm, layer.up, layer.down):
            fully_shard(part, **job.options())
    fully_shard(model, **job.options())


def by_four(model: Any, job: Job) -> None:
    """Four neighbours a unit."""
    layers = list(model.layers)
    for at in range(0, len(layers), 4):
        fully_shard(layers[at : at + 4], **job.options())
    fully_shard(model, **job.options())


class Adapted(Block):
    """A frozen block with a low-rank adapter."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.requires_grad_(False)
        self.a = nn.Linear(width, 16, bias=False)
        self.b = nn.Linear(16, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Both."""
        y: Tensor = super().forward(x) + self.b(self.a(x))
        return y


def adapted(job: Job) -> nn.Module:
    """A frozen model with adapters."""
    model = Decoder(job, [Adapted(job.width) for _ in range(job.blocks)])
    for part in (model.embedding, model.norm, model.head):
        part.requires_grad_(False)
    return model


FROZEN_BASE = {"FD503": "the base is frozen, and gathered in every step"}


class Stages(nn.Module):
    """A convolutional model's stages, of no class that a rule knows."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.stages = nn.ModuleList(Block(job.width) for _ in range(job.blocks))
        self.embedding = nn.Embedding(job.vocabulary, job.width)
        self.norm = nn.LayerNorm(job.width)
        self.head = nn.Linear(job.width, job.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """One after the other."""
        x = self.embedding(tokens)
        for stage in self.stages:
            x = stage(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def by_stage(model: Any, job: Job) -> None:
    """Each stage a unit."""
    for stage in model.stages:
        fully_shard(stage, **job.options())
    fully_shard(model, **job.options())


class TwoTowers(nn.Module):
    """Two stacks, one after the other."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        half = job.blocks // 2
        self.embedding = nn.Embedding(job.vocabulary, job.width)
        self.encoder = nn.Sequential(*(Block(job.width) for _ in range(half)))
        self.decoder = nn.Sequential(*(Block(job.width) for _ in range(half)))
        self.head = nn.Linear(job.width, job.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        x = self.decoder(self.encoder(self.embedding(tokens)))
        logits: Tensor = self.head(x)
        return logits


def each_of_both(model: Any, job: Job) -> None:
    """Each block of both stacks a unit."""
    for block in (*model.encoder, *model.decoder):
        fully_shard(block, **job.options())
    fully_shard(model, **job.options())


def blocks_alone(model: Any, job: Job) -> None:
    """No call for the model itself: what is left is replicated."""
    for layer in model.layers:
        fully_shard(layer, **job.options())


def plain_adamw(moment: Moment) -> torch.optim.Optimizer:
    """Tensor by tensor."""
    return torch.optim.AdamW(trained(moment.model), lr=1e-4, foreach=False)


class Vision(nn.Module):
    """Many small weights a layer, as image models have."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(12))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        """All of them."""
        for part, norm in zip(self.parts, self.norms, strict=True):
            x = x + part(norm(x))
        return x


def vision(job: Job) -> nn.Module:
    """Layers of many small weights."""
    return Decoder(job, [Vision(job.width) for _ in range(job.blocks)])


class RawTable(Decoder):
    """Its forward reads an auxiliary table's weight, past the table's forward."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.positions = nn.Embedding(job.length, job.width)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Positions are added as they lie."""
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.norm(x)
        return y


def every_embedding(model: Any, job: Job) -> None:
    """Each `nn.Embedding` a unit, whatever it is for."""
    fully_shard(model.positions, **job.options())
    with_tables(model, job)


NODES = "80GB/s@15us"
PARTS = rehearsed(build=headed, shard=each_part, wire=NODES, blocks=6, batch=16)
WHOLE = rehearsed(shard=root_only, wire=NODES, batch=16)
LORA = rehearsed(build=adapted, shard=root_only)
MANY = rehearsed(build=vision, width=256, blocks=4, batch=32)


ENTRIES: list[Entry | Untold] = [
    Entry(
        number="B01",
        why="every MLP and every head was a unit of its own",
        fault=PARTS,
        cure=but(PARTS, shard=by_block),
        codes=("FD202",),
        units=("layers.0.heads.0",),
    ),
    Entry(
        number="B02",
        why="one unit for the whole model put all collectives on the critical path",
        fault=WHOLE,
        cure=but(WHOLE, shard=by_block, settle=chain()),
        codes=("FD201",),
        units=("<root>",),
    ),
    Entry(
        number="B03",
        why="boundaries are where fully_shard is called: the root alone, two blocking "
        "collectives",
        fault=but(WHOLE, blocks=16, width=1024, wire="nvlink4"),
        cure=but(WHOLE, blocks=16, width=1024, wire="nvlink4", shard=by_block),
        codes=("FD201",),
        units=("<root>",),
    ),
    Entry(
        number="B04",
        why="the wrong layer class: one unit, memory as without sharding",
        fault=rehearsed(build=TwoTowers, shard=root_only, blocks=12),
        cure=rehearsed(build=TwoTowers, shard=each_of_both, blocks=12),
        codes=("FD201",),
        units=("<root>",),
    ),
    Entry(
        number="B05",
        why="the wrap policy was dropped: one unit around a model with adapters",
        fault=LORA,
        cure=but(LORA, shard=by_block),
        codes=("FD201",),
        units=("<root>",),
        still=FROZEN_BASE,
    ),
    Entry(
        number="B06",
        why="no call for the model itself: embedding and head stay whole on every rank",
        fault=rehearsed(shard=blocks_alone, optimizer=plain_adamw),
        cure=rehearsed(optimizer=plain_adamw),
        codes=("FD508",),
    ),
    Entry(
        number="B07",
        why="no wrap rule matched, so that only the root was wrapped",
        fault=rehearsed(build=Stages, shard=root_only, blocks=6),
        cure=rehearsed(build=Stages, shard=by_stage, blocks=6),
        codes=("FD201",),
        units=("<root>",),
    ),
    Entry(
        number="B08",
        why="many small weights: the optimizer's step is the host's",
        fault=but(MANY, optimizer=plain_adamw),
        cure=MANY,
        codes=("FD404",),
    ),
    Entry(
        number="B09",
        why="a gather is hidden only where it takes no longer than a layer computes",
        fault=rehearsed(wire="20GB/s", batch=4),
        cure=rehearsed(wire="20GB/s", batch=64, length=1024),
        codes=("FD101",),
        units=("layers.3",),
    ),
    Entry(
        number="B10",
        why="collectives so small that their latency is all they take",
        fault=rehearsed(
            width=512, blocks=24, batch=16, shard=each_linear, wire="ib400"
        ),
        cure=rehearsed(width=512, blocks=24, batch=16, shard=by_four, wire="ib400"),
        codes=("FD202",),
        units=("layers.0.up",),
    ),
    Entry(
        number="B11",
        why="a parent reads the weight of a table that is a unit of its own",
        fault=rehearsed(build=RawTable, shard=every_embedding, raises="RuntimeError"),
        cure=rehearsed(build=RawTable, shard=with_tables),
        codes=("FD408", "FD504"),
    ),
    Entry(
        number="B12",
        why="two samples a rank: too little to compute for any gather to hide",
        fault=rehearsed(batch=2, length=1024, wire="75GB/s@15us"),
        cure=rehearsed(batch=32, length=1024, wire="75GB/s@15us"),
        codes=("FD101",),
        units=("layers.3",),
    ),
]
