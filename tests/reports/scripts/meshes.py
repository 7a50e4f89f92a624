"""Meshes of two dimensions, meant flat or not: meshes.py WAY (4 ranks)."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.rig.scripts.decoder import Decoder, begin, say, sharded, step, tokens_of


def of(way: str) -> tuple[DeviceMesh, int]:
    """The mesh to shard over, and whose data a rank takes."""
    rank = dist.get_rank()
    if way.startswith("ulysses"):  # sequences shared by pairs
        whole = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "fsdp", "sp"))
        data = whole["fsdp"].get_local_rank()
        if way == "ulysses-flat":
            return whole["fsdp", "sp"]._flatten("fsdp_sp"), data
        return whole["fsdp", "sp"], data
    if way == "hybrid-within-flat":  # replicated over nodes, sharded over the rest
        whole = init_device_mesh(
            "cpu", (2, 1, 2), mesh_dim_names=("dp_replicate", "dp_shard", "cp")
        )
        whole["dp_shard", "cp"]._flatten("dp_shard_cp")
        return whole["dp_replicate", "dp_shard_cp"], whole[
            "dp_replicate"
        ].get_local_rank()
    if way == "nodes":  # hybrid sharding as its own words have it
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "gpu")), rank
    if way == "context-outside":  # the shard part alone, sequences shared by pairs
        whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "cp"))
        return whole["dp_shard"], whole["dp_shard"].get_local_rank()
    raise SystemExit(f"no such way: {way}")


way = sys.argv[1]
begin()
mesh, data = of(way)
model = sharded(Decoder(), mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(1 + data)
half = way.startswith(("ulysses", "context"))
for at in range(8):
    tokens = tokens_of()
    if half:
        part = dist.get_rank() % 2
        tokens = tokens[:, part * 24 : part * 24 + 25]
    say(at, step(model, optimizer, tokens))
dist.destroy_process_group()
