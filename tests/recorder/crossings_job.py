"""Trains once as it is, then with each callback of a part failing, once in its first
call and once in its sixth: crossings_job.py FOLDER PART PARTS.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[2]))

from fsdpdoctor import recorder
from fsdpdoctor.recorder.crossings import CALLBACKS
from fsdpdoctor.run import open_run

STEPS = 15
ERRORS = (KeyError, MemoryError)


class Block(nn.Module):
    """Two linear layers; the second is recomputed in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A residual block."""
        hidden = checkpoint(self.up, x, use_reentrant=False)
        result: torch.Tensor = x + self.down(torch.relu(hidden))
        return result


def train() -> list[str]:
    """Each step's loss, and the parameters at the end, to the bit."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(8, 1))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = torch.randn(STEPS * 4, 8, generator=torch.Generator().manual_seed(1))
    # Scales by powers of two, which change no bit; every second step overflows.
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    said = []
    rows: Any = data  # a tensor is a dataset, which its type does not say
    for at, batch in enumerate(DataLoader(rows, batch_size=4)):
        loss = model(batch).square().mean()
        scaler.scale(loss * (float("inf") if at % 2 else 1.0)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        said.append(loss.item().hex())
    gc.collect()
    for parameter in model.parameters():
        local: Any = parameter
        said += [value.hex() for value in local.to_local().detach().flatten().tolist()]
    return said


def failing(path: str, error: type[Exception], at: int) -> tuple[Any, str, Any, Any]:
    """The owner, name and original of a callback, and one that fails once."""
    module, _, rest = path.partition(":")
    owner_name, _, name = rest.partition(".")
    owner = getattr(importlib.import_module(module), owner_name)
    original: Callable[..., Any] = getattr(owner, name)
    calls = iter(range(10**9))

    def fails(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            raise error("injected")
        return original(*args, **kwargs)

    fails.calls = calls  # type: ignore[attr-defined]
    return owner, name, original, fails


def recorded(folder: Path, path: str, error: type[Exception], at: int) -> Any:
    """What came of a training in which one callback failed at its nth call."""
    owner, name, original, fails = failing(path, error, at)
    stderr = io.StringIO()
    setattr(owner, name, fails)
    try:
        with contextlib.redirect_stderr(stderr), recorder.record(folder):
            trained = train()
    finally:
        setattr(owner, name, original)
    header = None
    with contextlib.suppress(Exception):
        header = open_run(folder).sources[dist.get_rank()].load().header
    return {
        "fired": next(fails.calls) > at,
        "trained": trained,
        "said": stderr.getvalue().splitlines(),
        "record": [] if header is None else [header.ended, *header.warnings],
    }


def main() -> None:
    """Write what came of each, for this rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder = Path(sys.argv[1])
    results: dict[str, Any] = {"plain": train()}
    part = CALLBACKS[int(sys.argv[2]) :: int(sys.argv[3])]
    for number, path in enumerate(part):
        for error, at in zip(ERRORS, (0, 5), strict=True):
            key = f"{path} {error.__name__} at {at}"
            results[key] = recorded(folder / f"{number}-{at}", path, error, at)
    results["after"] = train()
    out = folder / f"results.{dist.get_rank()}.json"
    out.write_text(json.dumps(results))
    dist.destroy_process_group()


main()
