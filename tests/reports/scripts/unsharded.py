"""Nothing of PyTorch's shards the model or keeps its copies alike: unsharded.py WAY."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from tests.rig.scripts.decoder import Decoder, begin, loss_of, own_data, say, tokens_of


def average(p: torch.Tensor) -> None:
    """As soon as a gradient is there."""
    assert p.grad is not None
    dist.all_reduce(p.grad)
    p.grad.div_(dist.get_world_size())


def average_at_once(tensors: list[torch.Tensor]) -> None:
    """In one buffer, in half the width."""
    flat = _flatten_dense_tensors([one.bfloat16() for one in tensors])
    dist.all_reduce(flat)
    flat.div_(dist.get_world_size())
    with torch.no_grad():
        for one, mean in zip(
            tensors, _unflatten_dense_tensors(flat, tensors), strict=True
        ):
            one.copy_(mean)


way = sys.argv[1]
begin()
model: nn.Module = Decoder()
parameters = list(model.parameters())
if way == "each":
    for p in parameters:
        p.register_post_accumulate_grad_hook(average)
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
own_data()
for at in range(9):
    loss = loss_of(model, tokens_of())
    loss.backward()
    if way == "at-once":
        average_at_once([p.grad for p in parameters if p.grad is not None])
    optimizer.step()
    optimizer.zero_grad()
    if way == "local-steps" and at % 3 == 2:
        average_at_once([p.data for p in parameters])
    say(at, loss.detach())
dist.destroy_process_group()
