"""Trains once as it is, then with each callback of a part failing, once in its first
call and once in its sixth: crossings_job.py FOLDER PART PARTS. Callbacks of a tuning
fail in their first call, and in the first one while settings are tried, each on one
rank alone.
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
from fsdpdoctor.recorder.autotune import start
from fsdpdoctor.recorder.autotune.autotuner import Autotuner, Setup
from fsdpdoctor.recorder.crossings import CALLBACKS, TUNING
from fsdpdoctor.run import open_run
from tests.recorder.autotune.hurried import hurry, put

STEPS, TUNED_STEPS = 15, 75
ERRORS = (KeyError, MemoryError)

TRIED = {
    "other": {
        "unshard_async_op": True,
        "units": {
            "0": {"reshard_after_forward": False, "forward_prefetch": ["1", "2"]},
            "1": {"reshard_after_forward": False, "backward_prefetch": ["0"]},
        },
    }
}


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


class Net(nn.Sequential):
    """Its last module is gathered in backward, and never used."""

    def __init__(self) -> None:
        super().__init__(Block(), Block(), nn.Linear(8, 1), nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All but the last."""
        for block in [*self][:-1]:
            x = block(x)
        return x


def train(steps: int = STEPS) -> list[str]:
    """Each step's loss, and the parameters at the end, to the bit."""
    torch.manual_seed(0)
    model = Net()
    units: list[Any] = [fully_shard(block) for block in model]
    fully_shard(model)
    units[1].set_modules_to_backward_prefetch([units[0], units[3]])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = torch.randn(steps * 4, 8, generator=torch.Generator().manual_seed(1))
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
        if steps > STEPS and at % 3 == 0:
            with torch.no_grad():
                said.append(model(batch).sum().item().hex())
    gc.collect()
    for parameter in model.parameters():
        local: Any = parameter
        said += [value.hex() for value in local.to_local().detach().flatten().tolist()]
    return said


class Watched(Autotuner):
    """The tuning of this job."""

    now: Watched | None = None

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        Watched.now = self

    @classmethod
    def tries(cls) -> bool:
        """Whether settings are tried now."""
        return cls.now is not None and cls.now._tried is not None


When = Callable[[int], bool]
"""Whether the nth call fails."""


def failing(path: str, error: type[Exception], when: When) -> tuple[Any, str, Any, Any]:
    """The owner, name and original of a callback, and one that fails once."""
    module, _, rest = path.partition(":")
    owner_name, _, name = rest.partition(".")
    owner = getattr(importlib.import_module(module), owner_name)
    original: Callable[..., Any] = getattr(owner, name)
    calls = iter(range(10**9))

    def fails(*args: Any, **kwargs: Any) -> Any:
        if not fails.fired and when(next(calls)):  # type: ignore[attr-defined]
            fails.fired = True  # type: ignore[attr-defined]
            raise error("injected")
        return original(*args, **kwargs)

    fails.fired = False  # type: ignore[attr-defined]
    return owner, name, original, fails


def recorded(folder: Path, path: str, error: type[Exception], when: When) -> Any:
    """What came of a training in which one callback failed."""
    tuned = path in TUNING
    owner, name, original, fails = failing(path, error, when)
    stderr = io.StringIO()
    hurry(TRIED, "other")
    setattr(owner, name, fails)
    try:
        with (
            contextlib.redirect_stderr(stderr),
            recorder.record(folder, autotune=tuned),
        ):
            trained = train(TUNED_STEPS if tuned else STEPS)
    finally:
        setattr(owner, name, original)
        Watched.now = None
    header = None
    with contextlib.suppress(Exception):
        header = open_run(folder).sources[dist.get_rank()].load().header
    return {
        "fired": fails.fired,
        "trained": trained,
        "said": stderr.getvalue().splitlines(),
        "record": [] if header is None else [header.ended, *header.warnings],
    }


def times(path: str) -> dict[str, tuple[type[Exception], When]]:
    """When a callback fails on this rank."""
    if path not in TUNING:
        return {
            f"at {at}": (error, lambda call, at=at: call == at)  # type: ignore[misc]
            for error, at in zip(ERRORS, (0, 5), strict=True)
        }
    rank = dist.get_rank()
    return {
        f"{when} on rank {here}": (
            error,
            lambda call, here=here, tries=tries: (  # type: ignore[misc]
                rank == here and (Watched.tries() or not tries)
            ),
        )
        for here, error in enumerate(ERRORS)
        for when, tries in (("at first", False), ("in a trial", True))
    }


def main() -> None:
    """Write what came of each, for this rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder = Path(sys.argv[1])
    put((start, "Autotuner", Watched))
    results: dict[str, Any] = {"plain": train(), "plain, tuned": train(TUNED_STEPS)}
    part = CALLBACKS[int(sys.argv[2]) :: int(sys.argv[3])]
    for number, path in enumerate(part):
        for key, (error, when) in times(path).items():
            there = folder / f"{number}-{key.replace(' ', '-')}"
            results[f"{path} {key}"] = recorded(there, path, error, when)
    results["after"] = train()
    out = folder / f"results.{dist.get_rank()}.json"
    out.write_text(json.dumps(results))
    dist.destroy_process_group()


main()
