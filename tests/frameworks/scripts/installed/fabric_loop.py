"""Lightning Fabric: a loop of one's own, with its strategy for FSDP2."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from advice import pasted
from lightning.fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard

STEPS = 8


def parallelize(model: Any, device_mesh: Any) -> Any:
    """Each layer a unit."""
    scope = {"model": model, "device_mesh": device_mesh}
    if instead := pasted("instead"):
        exec(instead, scope)
        return model
    mesh = device_mesh["data_parallel"]
    for layer in list(model)[:3]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    exec(pasted("after"), scope)
    return model


def main() -> None:
    """One batch a step, clipped."""
    strategy = ModelParallelStrategy(
        parallelize_fn=parallelize, data_parallel_size=2, tensor_parallel_size=1
    )
    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        for _ in range(3)
    ]
    plain = nn.Sequential(*layers, nn.Linear(64, 8))
    model = fabric.setup(plain)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
    torch.manual_seed(1 + fabric.global_rank)
    for _ in range(STEPS):
        loss = model(torch.randn(4, 64)).square().mean()
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        if fabric.global_rank == 0:
            print("loss", repr(loss.item()), flush=True)


if __name__ == "__main__":
    main()
