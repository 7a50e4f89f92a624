"""What only some ranks do: rank_guards.py WAY (2 ranks)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)

from tests.rig.scripts.decoder import (
    Decoder,
    begin,
    loss_of,
    own_data,
    say,
    sharded,
    step,
    tokens_of,
)

FIRST = 0


def evaluate(model: Decoder) -> None:
    """A loss on held-out data."""
    with torch.no_grad():
        loss = loss_of(model, tokens_of(2))
    if dist.get_rank() == FIRST:
        print(f"held out {loss.item():.4f}", flush=True)


def save(model: Decoder, folder: Path) -> None:
    """The whole model, as one file."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    if dist.get_rank() == FIRST:
        torch.save(state, folder / "model.pt")


def note(loss: torch.Tensor) -> None:
    """The mean loss over ranks."""
    mean = loss.clone()
    dist.all_reduce(mean)
    if dist.get_rank() == FIRST:
        print(f"mean {mean.item() / dist.get_world_size():.4f}", flush=True)


way = sys.argv[1]
begin(timeout_s=15)
model = sharded(Decoder())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
folder = Path(tempfile.mkdtemp())
everybody = way.endswith("-all")
own_data()
for at in range(10):
    loss = step(model, optimizer)
    say(at, loss)
    if at % 5 != 4 or not (everybody or dist.get_rank() == FIRST):
        continue
    if way.startswith("evaluate"):
        evaluate(model)
        model.reshard()
    elif way.startswith("state-dict"):
        save(model, folder)
    elif way.startswith("metric"):
        note(loss)
    elif way.startswith("barrier"):
        dist.barrier()
dist.destroy_process_group()
