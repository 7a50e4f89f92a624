"""Ranks that do not do equally much: uneven.py WAY (2 ranks)."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist

from tests.rig.scripts.decoder import (
    Decoder,
    begin,
    loss_of,
    own_data,
    say,
    sharded,
    tokens_of,
)

STEPS, PER_STEP = 9, 2


def batches(way: str) -> Iterator[list[torch.Tensor]]:
    """The micro-batches of each step, on this rank."""
    last = dist.get_rank() == dist.get_world_size() - 1
    for at in range(STEPS):
        if way == "short-data" and last and at == 6:
            return
        count = PER_STEP
        if way == "packing" and last and at == 4:
            count += 1  # its documents are shorter, so it packs one more
        length = 48
        if way == "lengths":  # longer on one rank, and as many
            length = 64 if last else 32
        yield [tokens_of(3, length) for _ in range(count)]


def is_usable(way: str, at: int, loss: torch.Tensor) -> bool:
    """Whether a loss may go backward."""
    bad = way.startswith("bad-loss") and at == 5 and dist.get_rank() == 0
    usable = torch.tensor(0 if bad or not loss.isfinite() else 1)
    if way == "bad-loss-agreed":
        dist.all_reduce(usable, op=dist.ReduceOp.MIN)
    return bool(usable)


way = sys.argv[1]
begin(timeout_s=15)
model = sharded(Decoder())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
own_data()
for at, micro_batches in enumerate(batches(way)):
    for micro, tokens in enumerate(micro_batches):
        loss = loss_of(model, tokens)
        if not is_usable(way, at * (micro == 1), loss):
            continue
        (loss / len(micro_batches)).backward()
    optimizer.step()
    optimizer.zero_grad()
    say(at, loss.detach())
dist.destroy_process_group()
