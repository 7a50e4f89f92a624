"""Blocks compiled again and again, or not: compiling.py WAY (2 ranks)."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from tests.rig.scripts.decoder import (
    Block,
    Decoder,
    begin,
    own_data,
    say,
    sharded,
    step,
    tokens_of,
)


class Scheduled(Block):
    """Each step scales its residual by another plain number."""

    scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the block, scaled."""
        return x + self.scale * (super().forward(x) - x)


class Reads(Block):
    """Looks at a number of its activations in the middle."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the block, unless it blew up."""
        y = super().forward(x)
        if y.abs().max().item() > 1e4:
            return x
        return self.ln_1(y) + y


def rows_of(way: str, at: int) -> tuple[int, int]:
    """Rows and length of a step's batch."""
    if way == "rows":
        return 2 + at, 48
    if way == "two-lengths":  # both compiled in the first steps, and kept
        return 4, (32, 48)[at % 2]
    return 4, 48


way = sys.argv[1]
begin()
block = {"number": Scheduled, "reads": Reads}.get(way, Block)
model = Decoder(layers=2, block=block)
for layer in model.blocks:
    layer.compile(backend="aot_eager", dynamic=False)
sharded(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
own_data()
for at in range(14):
    if way == "number":
        for layer in model.blocks:
            layer.scale = 1.0 / (1 + at)
    say(at, step(model, optimizer, tokens_of(*rows_of(way, at))))
dist.destroy_process_group()
