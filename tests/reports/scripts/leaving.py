"""Weights that leave the shards after a step: leaving.py WAY (2 ranks)."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.tensor import DTensor, Replicate

from tests.rig.scripts.decoder import Decoder, begin, own_data, say, sharded, step


@torch.no_grad()
def leave(way: str, model: Decoder, copy: dict[str, Any]) -> None:
    """Bring the copy up to date."""
    if way == "state-dict":
        options = StateDictOptions(full_state_dict=True)
        copy.update(get_model_state_dict(model, options=options))
        return
    for name, p in model.named_parameters():
        assert isinstance(p, DTensor)
        if way == "replicate":
            copy[name] = p.redistribute(placements=[Replicate()]).to_local()
        elif way == "average":  # a moving average of whole parameters
            whole = p.full_tensor()
            copy[name] = whole if name not in copy else copy[name].lerp(whole, 0.1)
        elif way == "average-of-shards":
            shard = p.to_local()
            copy[name] = (
                shard.clone() if name not in copy else copy[name].lerp(shard, 0.1)
            )
        elif way == "norms":  # one number of each parameter, of all ranks
            copy[name] = p.norm().full_tensor().item()


way = sys.argv[1]
begin()
model = sharded(Decoder())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
copy: dict[str, Any] = {}
own_data()
for at in range(9):
    say(at, step(model, optimizer))
    if way != "seldom" or at == 5:
        leave("replicate" if way == "seldom" else way, model, copy)
dist.destroy_process_group()
