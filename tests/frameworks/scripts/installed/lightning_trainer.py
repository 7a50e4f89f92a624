"""Lightning's Trainer: its network has a name of its own, two batches make a step."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from advice import pasted
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        y: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return y


class Task(lightning.LightningModule):
    """Learns to say nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(*(Block() for _ in range(3)), nn.Linear(64, 8))

    def configure_model(self) -> None:
        """As Lightning's own example does."""
        if instead := pasted("instead"):
            exec(instead, {"self": self})
            return
        mesh = self.device_mesh["data_parallel"]
        for block in list(self.backbone)[:3]:
            fully_shard(block, mesh=mesh)
        fully_shard(self.backbone, mesh=mesh)
        exec(pasted("after"), {"self": self})

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        """The loss, to the bit."""
        loss = self.backbone(batch).square().mean()
        if self.global_rank == 0:
            print("loss", repr(loss.item()), flush=True)
        return loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        """Once an epoch."""
        self.log("held_out", self.backbone(batch).square().mean(), sync_dist=True)

    def configure_optimizers(self) -> Any:
        """With a schedule."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def main() -> None:
    """Two epochs of four steps."""
    generator = torch.Generator().manual_seed(0)
    rows: Any = torch.randn(64, 64, generator=generator)
    held_out: Any = torch.randn(8, 64, generator=generator)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        max_epochs=2,
        accumulate_grad_batches=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(Task(), DataLoader(rows, 4), DataLoader(held_out, 4))


if __name__ == "__main__":
    main()
