"""A small FSDP2 training over gloo in which the last rank goes wrong in step 6.

    torchrun --nproc-per-node N faults.py CASE

MARK is a file that is made as it does; TIMEOUT is the process group's, in seconds.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

CASE = sys.argv[1]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MINE = RANK == WORLD - 1
STEPS, WRONG = 12, 6


class Block(nn.Module):
    """A unit."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A layer."""
        return torch.relu(self.linear(x))


class Net(nn.Module):
    """Four of them, one of which can be skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.out = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        """All layers, or all but one."""
        for at, block in enumerate(self.blocks):
            if not (skip and at == 2):
                x = block(x)
        out: torch.Tensor = self.out(x)
        return out


def mark() -> None:
    """Say that it has begun."""
    Path(os.environ["MARK"]).touch()


def stuck_in_loader() -> None:
    """A read that does not come back."""
    mark()
    while True:
        time.sleep(0.05)


def batches() -> Iterator[torch.Tensor]:
    """The data."""
    for step in range(STEPS):
        if step == WRONG and MINE and CASE == "endless":
            stuck_in_loader()
        if step == WRONG and MINE and CASE == "early":
            mark()
            return
        yield torch.randn(4, 16)


def log_loss(loss: torch.Tensor) -> None:
    """Reduce a number over ranks."""
    dist.all_reduce(loss)


def save(model: nn.Module) -> None:
    """Gather every parameter, which all ranks must do."""
    for parameter in model.parameters():
        parameter.full_tensor()  # type: ignore[attr-defined]


def in_background() -> None:
    """A collective on another thread than the training's."""
    thread = threading.Thread(
        target=lambda: dist.all_reduce(torch.ones(3)), name="metrics"
    )
    thread.start()
    thread.join()


def die(bad: bool) -> None:
    """End this rank, or all, in the way of the case."""
    if CASE == "same-exception":
        torch.randn(2, 2) @ torch.randn(3, 3)
    if not bad:
        return
    if CASE == "raise":
        raise ValueError("token=sk-abcdefghijklmnop is no batch")
    if CASE == "memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if CASE == "nan":
        raise FloatingPointError("loss is nan")
    if CASE == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if CASE == "abort":
        os.abort()
    if CASE == "exit":
        sys.exit(3)


def go_wrong(step: int, model: nn.Module) -> bool:
    """What happens before the forward; whether this rank is the one."""
    bad = step == WRONG and MINE
    if bad and CASE not in ("endless", "early"):
        mark()
    if step == WRONG:
        die(bad)
    if bad and CASE == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if step == WRONG and CASE == "save" and RANK == 0:
        save(model)
    return bad


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=int(os.environ.get("TIMEOUT", "20")))
    dist.init_process_group("gloo", timeout=timeout)
    torch.manual_seed(0)
    model = Net()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step, x in enumerate(batches()):
        bad = go_wrong(step, model)
        loss = model(x, bad and CASE == "branch").sum()
        loss.backward()
        if CASE == "missing" and not bad:
            log_loss(torch.ones(1))
        if CASE == "shapes":
            log_loss(torch.ones(1000 if bad else 10))
        if CASE == "evaluation" and not bad:
            model(x)
        if CASE == "background" and bad:
            in_background()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
