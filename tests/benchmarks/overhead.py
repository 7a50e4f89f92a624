"""What recording costs: one interleaved benchmark on two gloo ranks.

    python tests/benchmarks/overhead.py [--blocks 24] [--width 512] [--rounds 6]

One process group, one model of BLOCKS + 1 units, and rounds of the same number
of steps in turn: plain, recorded at default sampling, plain, with torch.profiler.
Rounds are interleaved so that a machine that gets busier gets busier for all.
The recorder's dense first steps are timed apart: they come once in a run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DENSE_STEPS = 14
"""Steps of a recording before its cost is what a long run pays."""


def parse() -> argparse.Namespace:
    """The options, alike in the launcher and in the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=16, help="of a round")
    return parser.parse_args()


def main() -> None:
    """Start the two ranks, or be one."""
    if "RANK" in os.environ:
        measure(parse())
        return
    parse()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, __file__, *sys.argv[1:]]
    raise SystemExit(subprocess.run(command, env=environment, check=False).returncode)


def measure(options: argparse.Namespace) -> None:
    """Train in rounds, and print the medians of the steps."""
    import torch
    import torch.distributed as dist

    import fsdpdoctor

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step = training_step(options)
    folder = Path(tempfile.mkdtemp()) / f"rank{dist.get_rank()}"

    def timed(count: int) -> list[float]:
        found = []
        for _ in range(count):
            started = time.perf_counter()
            step()
            found.append(time.perf_counter() - started)
        return found

    def profiled() -> AbstractContextManager[Any]:
        return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

    timed(3)
    seconds: dict[str, list[float]] = {"plain": [], "recorded": [], "profiler": []}
    dense: list[float] = []
    for number in range(options.rounds):
        with fsdpdoctor.record(folder / str(number)):
            dense += timed(DENSE_STEPS)
            seconds["recorded"] += timed(options.steps)
        seconds["plain"] += timed(options.steps)
        around: Callable[[], AbstractContextManager[Any]]
        for name, around in (("profiler", profiled), ("plain", nullcontext)):
            with around():
                seconds[name] += timed(options.steps)
    if dist.get_rank() == 0:
        report(seconds, dense, options)
    dist.destroy_process_group()


def training_step(options: argparse.Namespace) -> Callable[[], None]:
    """One step of a model with a unit per block, and the root."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    width = options.width
    blocks = [
        nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        for _ in range(options.blocks)
    ]
    model = nn.Sequential(*blocks, nn.Linear(width, 8))
    for block in blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(options.batch, width)

    def step() -> None:
        loss: Any = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def report(
    seconds: dict[str, list[float]], dense: list[float], options: argparse.Namespace
) -> None:
    """Print medians and means, and their ratios to the plain ones."""
    plain = seconds["plain"]
    rows = {**seconds, "recorded, first steps": dense}
    lines = [f"{options.blocks + 1} units, {len(plain)} plain steps"]
    for name, found in rows.items():
        median, mean = statistics.median(found), statistics.fmean(found)
        lines.append(
            f"{name:22} median {median * 1e3:8.2f} ms  "
            f"ratio {median / statistics.median(plain):6.3f}  "
            f"mean ratio {mean / statistics.fmean(plain):6.3f}"
        )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
