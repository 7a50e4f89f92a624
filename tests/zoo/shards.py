"""J and K: frozen parameters; padding and alignment."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

from fsdpdoctor.finding import Severity
from tests.zoo.accumulation import hybrid
from tests.zoo.entry import Entry, Untold
from tests.zoo.job import Block, Decoder, Job, Tensor, by_block
from tests.zoo.situations import but, rehearsed
from tests.zoo.topology import narrow_base
from tests.zoo.wrapping import adapted


def adapters_apart(model: Any, job: Job) -> None:
    """Each adapter a unit of its own."""
    for layer in model.layers:
        fully_shard(layer.a, **job.options())
        fully_shard(layer.b, **job.options())
    by_block(model, job)


def base_ignored(model: Any, job: Job) -> None:
    """Adapters were to be ignored, and their layers' bases with them."""
    frozen = {p for layer in model.layers for p in layer.parameters()}
    for layer in model.layers:
        fully_shard(layer, **job.options(), ignored_params=frozen)
    fully_shard(model, **job.options(), ignored_params=frozen)


def all_but_one(model: Any) -> None:
    """One product of the last layer is trained."""
    model.requires_grad_(False)
    model.layers[-1].down.requires_grad_(True)
    narrow_base(model)


class Gate(nn.Module):
    """A block with a stray parameter of one element."""

    def __init__(self, width: int, size: int = 1) -> None:
        super().__init__()
        self.block = Block(width)
        self.gate = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """The block, gated."""
        y: Tensor = self.block(x) * self.gate[:1]
        return y


def gated(size: int) -> Any:
    """A decoder of such layers."""

    def build(job: Job) -> nn.Module:
        return Decoder(job, [Gate(job.width, size) for _ in range(job.blocks)])

    return build


class Pair(Block):
    """A wide parameter of two rows."""

    rows = 2

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.pair = nn.Parameter(torch.ones(self.rows, 8 * 1024 * 1024 // self.rows))

    def forward(self, x: Tensor) -> Tensor:
        """Scaled by it."""
        scale = self.pair.reshape(-1, x.shape[-1]).mean(0)
        y: Tensor = super().forward(x) * scale
        return y


class Even(Pair):
    """The same with as many rows as ranks."""

    rows = 8


class Experts(nn.Module):
    """Stacked experts, all of which see all tokens."""

    def __init__(self, width: int, count: int = 12) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Parameter(torch.ones(count, width, width // 2))
        self.down = nn.Parameter(torch.ones(count, width // 2, width))

    def forward(self, x: Tensor) -> Tensor:
        """Each expert a part of the tokens."""
        y = self.norm(x).reshape(self.up.shape[0], -1, x.shape[-1])
        y = torch.bmm(torch.relu(torch.bmm(y, self.up)), self.down)
        return x + y.reshape(x.shape)


def layers_of(kind: Any) -> Any:
    """A decoder of such layers."""

    def build(job: Job) -> nn.Module:
        return Decoder(job, [kind(job.width) for _ in range(job.blocks)])

    return build


def along_columns(parameter: nn.Parameter) -> Shard | None:
    """Experts are cut along another dimension."""
    return Shard(1) if parameter.dim() == 3 else None


STRAY = rehearsed(build=gated(1))
LORA = rehearsed(build=adapted, prepare=narrow_base)
MOE = rehearsed(build=layers_of(Experts), batch=12, width=1536)

ENTRIES: list[Entry | Untold] = [
    Entry(
        number="J02",
        why="adapters are sharded one by one: 40 % slower than replicated",
        fault=but(LORA, shard=adapters_apart, wire="80GB/s@15us"),
        cure=but(LORA, mesh=hybrid(8, 1)),
        codes=("FD503", "FD202"),
        units=("layers.0.a", "layers.0.b"),
    ),
    Entry(
        number="J03",
        why="weights that never change are gathered in every step",
        fault=but(LORA, wire="ib400", blocks=12),
        cure=but(LORA, wire="ib400", blocks=12, mesh=hybrid(8, 1)),
        codes=("FD503",),
        units=("layers.3",),
    ),
    Entry(
        number="J04",
        why="ignoring adapters ignored their base layers, too: whole on each rank",
        fault=but(LORA, shard=base_ignored),
        cure=but(LORA, mesh=hybrid(8, 1)),
        codes=("FD508",),
    ),
    Entry(
        number="J05",
        why="all but one product is frozen, and all is gathered",
        fault=rehearsed(prepare=all_but_one, wire="80GB/s@15us"),
        cure=rehearsed(prepare=all_but_one, mesh=hybrid(8, 1)),
        codes=("FD503",),
        units=("layers.3",),
    ),
    Entry(
        number="K01",
        why="parts that are no multiple of 16 bytes: gathers take three times as long",
        fault=STRAY,
        cure=but(STRAY, build=gated(64)),
        codes=("FD204",),
        units=("layers.3",),
        least=Severity.INFO,
    ),
    Entry(
        number="K02",
        why="two rows on eight ranks: six hold nothing but padding",
        fault=rehearsed(build=layers_of(Pair)),
        cure=rehearsed(build=layers_of(Even)),
        codes=("FD204",),
        units=("layers.3",),
    ),
    Entry(
        number="K03",
        why="dimensions other than the first must divide by the ranks",
        fault=but(
            MOE,
            width=1500,
            sharding={"shard_placement_fn": along_columns},
            raises="NotImplementedError",
        ),
        cure=but(MOE, sharding={"shard_placement_fn": along_columns}),
        codes=("FD408",),
    ),
    Entry(
        number="K04",
        why="twelve experts on eight ranks: a quarter is padding",
        fault=MOE,
        cure=but(MOE, sharding={"shard_placement_fn": along_columns}),
        codes=("FD204",),
        units=("layers.3",),
    ),
    Untold(
        number="K05",
        why="a subclass of tensors that does not pad itself; no such subclass is here",
    ),
    Untold(
        number="K06",
        why="another vendor's fallback for shards that are not aligned; K01 is of NCCL",
    ),
]
