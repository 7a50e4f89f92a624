"""A small training over gloo, in which ranks do not do the same: ranks.py WAY."""

from __future__ import annotations

import datetime
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WAY = sys.argv[1]
STEPS, WRONG = 8, 5


class Block(nn.Module):
    """A unit."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.up = nn.Linear(32, hidden)
        self.down = nn.Linear(hidden, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The residual."""
        return x + self.down(torch.relu(self.up(x)))


class Routed(Block):
    """A block with an expert in it."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block, then its expert."""
        return self.expert(super().forward(x))


class Net(nn.Module):
    """A trunk, and an image tower or two experts that not every batch needs."""

    def __init__(self) -> None:
        super().__init__()
        kind = Routed if WAY.startswith("compile-experts") else Block
        self.layers = nn.ModuleList(kind() for _ in range(3))
        towers = 2 if WAY.startswith("tower") else 0
        self.tower = nn.ModuleList(Block() for _ in range(towers))
        sizes = (64, 64 if WAY == "expert-same" else 128)
        experts = sizes if WAY.startswith("expert") else ()
        self.experts = nn.ModuleList(Block(hidden) for hidden in experts)
        self.out = nn.Linear(32, 8)

    def forward(
        self, x: torch.Tensor, images: bool = False, expert: int | None = None
    ) -> torch.Tensor:
        """All, or parts."""
        for layer in self.layers:
            x = layer(x)
        if images:
            for layer in self.tower:
                x = layer(x)
        if expert is not None:
            x = self.experts[expert](x)
        return self.out(x)


def build() -> Net:
    """Sharded, as the way says."""
    torch.manual_seed(0)
    model = Net()
    if WAY.startswith("tower"):
        model.tower.requires_grad_(False)
    options = {}
    if WAY.startswith("mesh"):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        options["mesh"] = mesh["shard"] if WAY == "mesh-part" else mesh
    if WAY in ("compile-layers-before", "compile-experts", "compile-experts-in-block"):
        for layer in model.layers:
            layer.compile(backend="eager")
    if WAY == "compile-experts":
        for layer in model.layers:
            fully_shard(layer.expert)
    apart = [] if WAY == "tower-in-root" else list(model.tower)
    for layer in (*model.layers, *apart, *model.experts):
        fully_shard(layer, **options)
    fully_shard(model, **options)
    if WAY == "compile-layers-after":
        for layer in model.layers:
            layer.compile(backend="eager")
    if WAY == "compile-whole":
        model.compile(backend="eager")
    return model


def batch() -> torch.Tensor:
    """Some rows."""
    return torch.randn(4, 32)


def load_buffers(rank: int) -> None:
    """Broadcast what the first rank has read, in the order of its dictionary."""
    sizes = {"inv_freq": 16, "mask": 64, "positions": 32}
    names = list(sizes)
    if WAY == "buffers" and rank:
        names.reverse()
    for name in names:
        dist.broadcast(torch.zeros(sizes[name]), src=0)


def save(model: Net, rank: int) -> None:
    """The plan of a save is put together on the device, which has no room left."""
    if WAY == "save":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    model.state_dict()


def train(model: Net, rank: int) -> None:
    """The loop, in which the last rank goes its own way from step 5 on."""
    run = model
    if WAY == "compile-around":
        run = torch.compile(model, backend="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        wrong = rank == dist.get_world_size() - 1 and step >= WRONG
        rows = 2
        if WAY == "micro-batches" and wrong:
            rows = 3
        for _ in range(rows):
            x = batch()
            if WAY == "no-rows" and wrong:
                continue
            if WAY == "early-return" and wrong:
                loss = x.sum() * torch.zeros((), requires_grad=True)
                loss.backward()
                continue
            images = WAY.startswith("tower") and not wrong
            if WAY == "tower-always":
                images = True
            expert = None
            if WAY in ("expert", "expert-same"):
                expert = int(wrong)
            elif WAY == "expert-agreed":
                expert = int(step >= WRONG)
            run(x, images, expert).square().mean().backward()
        if WAY.startswith("save") and step == WRONG:
            save(model, rank)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}", flush=True)


def main() -> None:
    """A job of two or four ranks."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=12))
    rank = dist.get_rank()
    model = build()
    torch.manual_seed(rank)
    if WAY.startswith("buffers"):
        load_buffers(rank)
    train(model, rank)
    dist.destroy_process_group()


main()
