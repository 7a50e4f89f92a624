"""What recording costs: one interleaved benchmark on two gloo ranks.

    python tests/benchmarks/overhead.py [--blocks 24] [--width 512] [--rounds 6]

One process group and one model of BLOCKS + 1 units. A round is: plain steps, a
recording at default sampling (its dense first steps, then as many as the plain
ones), plain steps again, a recording of every step (its first ten, then as many),
plain steps, and a few under torch.profiler. A part's ratio is against the plain steps
on both sides of it, so that a machine that gets busier moves both; where rounds differ
by more than what is measured, the machine was not quiet. The first ten are given as
their median, and as their mean, which has in it the one step whose memory is counted.
Takes about four minutes on two quiet cores.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DENSE_STEPS = 13
"""Steps of a recording before its cost is what a long run pays: `sampling` records
twelve, and the last of them is written in the one after."""
FIRST_STEPS = 10
RUN_STEPS = 300
"""Of the run for which the dense start is counted in."""

Seconds = list[float]

PARTS = {"dense": 0, "recorded": 0, "first": 1, "every": 1, "profiler": 2}
"""Of a round, in their order: plain steps stand between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The lengths of one round's steps."""

    plain: list[Seconds] = field(default_factory=list)  # before each part, and last
    dense: Seconds = field(default_factory=list)
    recorded: Seconds = field(default_factory=list)  # after the dense ones
    first: Seconds = field(default_factory=list)
    every: Seconds = field(default_factory=list)  # after the first ones
    profiler: Seconds = field(default_factory=list)

    def ratio(self, name: str, average: Callable[[Seconds], float]) -> float:
        """Of some of its steps to the plain ones on both sides of them."""
        part = PARTS[name]
        around = self.plain[part] + self.plain[part + 1]
        return average(getattr(self, name)) / average(around)

    def of_run(self) -> float:
        """Of a recorded run of RUN_STEPS steps, its dense start included."""
        dense = DENSE_STEPS / RUN_STEPS
        mean = statistics.fmean
        return dense * self.ratio("dense", mean) + (1 - dense) * self.ratio(
            "recorded", mean
        )


def parse() -> argparse.Namespace:
    """The options, alike in the launcher and in the ranks."""
    parser = of_model(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--steps", type=int, default=12, help="plain, on either side")
    return parser.parse_args()


def of_model(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The same, with the options of `training_step` and how often all is done."""
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=6)
    return parser


def main() -> None:
    """Start the two ranks, or be one."""
    if "RANK" in os.environ:
        measure(parse())
        return
    parse()
    raise SystemExit(two_ranks(__file__))


def two_ranks(*script: str) -> int:
    """Run a script, or `-m` and a module, on two ranks; the status they end with."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, *script, *sys.argv[1:]]
    return subprocess.run(command, env=environment, check=False).returncode


def measure(options: argparse.Namespace) -> None:
    """Train in rounds, and print what they took."""
    import torch
    import torch.distributed as dist

    import fsdpdoctor

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step = training_step(options)
    folder = Path(tempfile.mkdtemp()) / f"rank{dist.get_rank()}"

    def timed(count: int) -> Seconds:
        found = []
        for _ in range(count):
            started = time.perf_counter()
            step()
            found.append(time.perf_counter() - started)
        return found

    timed(3)
    rounds = []
    for number in range(options.rounds):
        now = Round()
        now.plain.append(timed(options.steps))
        with fsdpdoctor.record(folder / str(number)):
            now.dense.extend(timed(DENSE_STEPS))
            now.recorded.extend(timed(2 * options.steps))
        now.plain.append(timed(options.steps))
        with fsdpdoctor.record(folder / f"{number}-every", every=1):
            now.first.extend(timed(FIRST_STEPS))
            now.every.extend(timed(2 * options.steps))
        now.plain.append(timed(options.steps))
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities):
            now.profiler.extend(timed(4))
        now.plain.append(timed(options.steps))
        rounds.append(now)
    if dist.get_rank() == 0:
        sys.stdout.write("\n".join(report(rounds, options)) + "\n")
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


def report(rounds: list[Round], options: argparse.Namespace) -> list[str]:
    """Medians over all steps, then each round's ratios to its own plain steps."""
    median = statistics.median
    lines = [f"{options.blocks + 1} units, {len(rounds)} rounds"]
    plain = median([s for one in rounds for part in one.plain for s in part])
    lines.append(f"{'plain':10} median {plain * 1e3:8.2f} ms  ratio  1.000")
    for name in PARTS:
        found = median([s for one in rounds for s in getattr(one, name)])
        lines.append(
            f"{name:10} median {found * 1e3:8.2f} ms  ratio {found / plain:6.3f}"
        )
    rows = {
        f"{name}, {plural}": [one.ratio(name, average) for one in rounds]
        for name in PARTS
        for plural, average in (("medians", median), ("means", statistics.fmean))
    }
    rows[f"run of {RUN_STEPS} steps"] = [one.of_run() for one in rounds]
    for name, ratios in rows.items():
        each = " ".join(f"{ratio:6.3f}" for ratio in ratios)
        lines.append(f"{name:18} median {median(ratios):6.3f}  rounds {each}")
    return lines


if __name__ == "__main__":
    main()
