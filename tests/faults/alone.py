"""Trains a small sharded model alone, in odd surroundings: alone.py ODDITY LOSSES.

The losses, to the bit, go into the file LOSSES.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.faults.between_steps import WITHIN
from tests.faults.caught import CAUGHT
from tests.faults.oddities import BEFORE, clock_set, say
from tests.faults.own_ways import OWN_WAYS
from tests.faults.strictness import STRICT

STEPS = 14
NAME, LOSSES = sys.argv[1], Path(sys.argv[2]).absolute()


def main() -> None:
    """Train; the losses tell whether anything was otherwise."""
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group(
        "gloo", init_method=f"file://{LOSSES}.store", rank=0, world_size=1
    )
    losses = LOSSES.open("w")
    if NAME in BEFORE:
        BEFORE[NAME]()
    if NAME in OWN_WAYS:
        OWN_WAYS[NAME]()
    if NAME in STRICT:
        STRICT[NAME]()
    torch.manual_seed(1)
    with torch.device("cpu"):
        model: Any = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        if NAME in WITHIN:
            WITHIN[NAME](step)
        if step == 7 and NAME in ("clock-forward", "clock-back"):
            clock_set(7200 if NAME == "clock-forward" else -7200)()
        generator = torch.Generator("cpu").manual_seed(step)
        batch = torch.randn(
            4, 8, generator=generator, device="cpu", dtype=torch.get_default_dtype()
        )

        def loss_of(batch: torch.Tensor = batch) -> Any:
            return model(batch).square().mean()

        if NAME in CAUGHT:
            CAUGHT[NAME](step, model, optimizer, loss_of)
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.write(f"{step} {loss.item().hex()}\n")
        losses.flush()
    say("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
