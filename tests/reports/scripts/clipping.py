"""Gradients of two kinds in one norm: clipping.py WAY (2 ranks)."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.rig.scripts.decoder import Decoder, begin, own_data, say, sharded, step


def two_meshes() -> tuple[Decoder, list[list[nn.Parameter]]]:
    """The last block over a mesh of its own."""
    dense = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    sparse = init_device_mesh(
        "cpu", (dist.get_world_size(),), mesh_dim_names=("efsdp",)
    )
    model = Decoder()
    for block in model.blocks[:-1]:
        fully_shard(block, mesh=dense)
    fully_shard(model.blocks[-1], mesh=sparse)
    fully_shard(model, mesh=dense)
    own = set(model.blocks[-1].parameters())
    return model, [list(own), [p for p in model.parameters() if p not in own]]


def average(p: torch.Tensor) -> None:
    """A gradient that no unit reduces."""
    assert p.grad is not None
    dist.all_reduce(p.grad)
    p.grad.div_(dist.get_world_size())


def part_plain() -> tuple[Decoder, list[list[nn.Parameter]]]:
    """A norm's weights left out: plain tensors beside sharded ones."""
    model = Decoder()
    plain = set(model.ln_f.parameters())
    sharded(model, ignored_params=plain)
    for p in plain:
        p.register_post_accumulate_grad_hook(average)
    return model, [list(plain), [p for p in model.parameters() if p not in plain]]


def all_at_once(groups: list[list[nn.Parameter]]) -> None:
    """One call over all of them."""
    nn.utils.clip_grad_norm_([p for group in groups for p in group], 1.0)


def by_hand(groups: list[list[nn.Parameter]]) -> None:
    """Norms stacked by the script."""
    grads = [p.grad for group in groups for p in group]
    total = torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(g) for g in grads if g is not None])
    )
    for g in grads:
        if g is not None:
            g.mul_(1.0 / (total + 1.0))


def each_apart(groups: list[list[nn.Parameter]]) -> None:
    """One norm a group, put together as numbers."""
    norms = []
    for group in groups:
        norm = nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    total = torch.stack(norms).norm()
    for group in groups:
        nn.utils.clip_grads_with_norm_(group, 1.0, total)


WAYS: dict[
    str,
    tuple[
        Callable[[], tuple[Decoder, list[list[nn.Parameter]]]],
        Callable[[list[list[nn.Parameter]]], None],
    ],
] = {
    "meshes-by-hand": (two_meshes, by_hand),
    "meshes-apart": (two_meshes, each_apart),
    "plain-at-once": (part_plain, all_at_once),
    "plain-apart": (part_plain, each_apart),
}

build, clip = WAYS[sys.argv[1]]
begin()
model, groups = build()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
own_data()
for at in range(8):
    say(at, step(model, optimizer, before=lambda: clip(groups)))
dist.destroy_process_group()
