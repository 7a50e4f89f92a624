"""What tuning costs beyond the settings that it tries: one interleaved benchmark.

    python -m tests.benchmarks.autotune_cost [--write] [--rounds 6] [--steps 60]

Two gloo ranks train a model of BLOCKS + 1 units. A round is A B C C B A: steps of a
recording that records none of them (A), the same while candidates are tried that
change nothing (B), and the same once nothing more is tried and something was kept (C).
What counts is the processor time of all that the tuning does, in the training's thread
and its own, as a share of a step's: other users of the machine move it little. The
ratios of whole steps, by processor and by clock, stand beside it, and say something on
a quiet machine alone.

Prints them, and with --write writes them to `autotune-cost-results.md` beside this
file; ends with 1 where B or C takes more than a percent. Some four minutes a round on
two quiet cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.overhead import of_model, training_step, two_ranks

RESULTS = Path(__file__).with_name("autotune-cost-results.md")

WARM_STEPS = 20
"""Before those that count: by then the first decision is on its way."""

MOST = 0.01
"""Of a step's processor time."""

NOTHING = {"units": {"0": {"reshard_after_forward": True}}}
"""What is tried: it is set already."""


class Spent(NamedTuple):
    """Of one part of a round: seconds a step."""

    own: float  # processor time, of what the training and its own thread do for tuning
    processor: float  # of this process
    clock: float  # the median


Round = Mapping[str, Sequence[Spent]]


def parse() -> argparse.Namespace:
    """The options, alike in the launcher and in the ranks."""
    parser = of_model(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--write", action="store_true", help="the results page")
    parser.add_argument("--steps", type=int, default=60, help="of each part")
    return parser.parse_args()


def main() -> None:
    """Start the two ranks, or be one."""
    if "RANK" in os.environ:
        measure(parse())
        return
    parse()
    raise SystemExit(two_ranks("-m", "tests.benchmarks.autotune_cost"))


def measure(options: argparse.Namespace) -> None:
    """Train in rounds."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step = training_step(options)
    rounds = []
    with tempfile.TemporaryDirectory() as own:
        said: list[Any] = [own]
        dist.broadcast_object_list(said)
        for number in range(options.rounds):
            found: dict[str, list[Spent]] = {"A": [], "B": [], "C": []}
            for nth, part in enumerate("ABCCBA"):
                folder = Path(said[0]) / f"{number}-{nth}"
                found[part].append(spent(part, folder, step, options.steps))
            rounds.append(found)
        dist.barrier()
    status = report(rounds, options) if dist.get_rank() == 0 else 0
    dist.destroy_process_group()
    raise SystemExit(status)


def spent(part: str, folder: Path, step: Callable[[], None], count: int) -> Spent:
    """What steps of one part of a round take."""
    import fsdpdoctor
    from fsdpdoctor.recorder.autotune import start
    from fsdpdoctor.recorder.autotune.autotuner import Autotuner
    from fsdpdoctor.recorder.autotune.tuning import MOST_TRIES
    from tests.recorder.autotune.hurried import hurry, no_search, put, unhurried

    made: list[Any] = []

    class Noted(Autotuner):
        def __init__(self, setup: Any) -> None:
            super().__init__(setup)
            made.append(self)
            self.own_s = 0.0

        def pass_begins(self, root: Any) -> None:
            began = time.thread_time()
            super().pass_begins(root)
            self.own_s += time.thread_time() - began

        def optimizer_begins(self) -> None:
            began = time.thread_time()
            super().optimizer_begins()
            self.own_s += time.thread_time() - began

        def _look(self) -> None:
            began = time.thread_time()
            super()._look()
            self.own_s += time.thread_time() - began

    with unhurried():
        put((start, "Autotuner", Noted))
        if part == "B":
            names = [f"nothing {at}" for at in range(MOST_TRIES)]
            put(*no_search(dict.fromkeys(names, NOTHING)))
        elif part == "C":
            hurry({"nothing": NOTHING}, "nothing")
        with fsdpdoctor.record(folder, steps="0:1", autotune=part != "A"):
            for _ in range(WARM_STEPS):
                step()
            if part == "C":
                _until_over(made[0], step)
            lengths = []
            own_before = made[0].own_s if made else 0.0
            before = time.process_time()
            for _ in range(count):
                begun = time.perf_counter()
                step()
                lengths.append(time.perf_counter() - begun)
            processor = (time.process_time() - before) / count
            own = ((made[0].own_s if made else 0.0) - own_before) / count
            if part == "B":
                assert not made[0]._voter.over, "fewer steps are tried than measured"
    return Spent(own, processor, statistics.median(lengths))


def _until_over(tuner: Any, step: Callable[[], None]) -> None:
    """On all ranks: each hears the end at another moment."""
    import torch
    import torch.distributed as dist

    while True:
        step()
        over = torch.tensor([float(tuner._voter.over)])
        dist.all_reduce(over, dist.ReduceOp.MIN)
        if over.item():
            assert tuner._kept
            return


def ratios(rounds: Sequence[Round], part: str, what: str) -> list[float]:
    """Of a part to A, in each round; of its own time, to all of A's processor time."""
    mean = statistics.fmean
    to = "processor" if what == "own" else what
    return [
        mean(getattr(one, what) for one in found[part])
        / mean(getattr(one, to) for one in found["A"])
        for found in rounds
    ]


def report(rounds: Sequence[Round], options: argparse.Namespace) -> int:
    """Print and write it; 0 where both are within bounds."""
    median = statistics.median
    usual = median(one.clock for found in rounds for one in found["A"])
    names = {"B": "while candidates are tried", "C": "once it is over, a plan kept"}
    lines = [
        "# What tuning costs",
        "",
        "    python -m tests.benchmarks.autotune_cost --write",
        "",
        f"{options.rounds} rounds on two gloo ranks, {options.blocks + 1} units,",
        f"{usual * 1e3:.1f} ms a step by the clock. Of rank 0, which does most: what",
        "the tuning itself takes (own), as a share of a step's processor time, and the",
        "ratios of whole steps to those of a recording that is not tuned. The",
        "candidates change nothing.",
        "",
        "| | of | median | lowest | highest |",
        "|---|---|---|---|---|",
    ]
    worst = 0.0
    for part, name in names.items():
        for what in Spent._fields:
            found = ratios(rounds, part, what)
            cells = (median(found), min(found), max(found))
            said = " | ".join(f"{cell:.4f}" for cell in cells)
            lines.append(f"| {name} | {what} | {said} |")
            if what == "own":
                worst = max(worst, median(found))
    text = "\n".join(lines) + "\n"
    if options.write:
        RESULTS.write_text(text)
    sys.stdout.write(text)
    return int(worst > MOST)


if __name__ == "__main__":
    main()
