"""What a tuning keeps of noise, and whether what it keeps is there afterwards.

    python -m tests.benchmarks.autotune_noise [--write] [--jobs 40] [--noisy 6]

Real FSDP2 on a modelled wire of eight ranks, in virtual time; each block's compute has
5 % of log-normal noise, one in 500 takes five times as long, and all slowly get longer.
First so many jobs with four candidates each that promise half of the step and change
nothing. Then jobs on a slow, a middling and a fast wire that search for themselves: of
what they keep, five later plain runs with the plan, each with noise of its own, are
compared with as many without.

Prints both tables, and with --write writes them to `autotune-noise-results.md` beside
this file; ends with 1 where more than one job in 40 has kept what changes nothing, or a
plan's later runs are not all faster. Takes some five minutes of one core, and no quiet
one.
"""

# ruff: noqa: T201 - it prints tables

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fsdpdoctor.cli.processes.rank_in_place import ranking_of
from tests.recorder.autotune.noisy import later_gains, nothings, tuned

RESULTS = Path(__file__).with_name("autotune-noise-results.md")

WIRES = {"10 MB/s": 10e6, "50 MB/s": 50e6, "1 GB/s": 1e9}
QUIET_WIRE = 10e6
LATER = 5
NOTHINGS = 4
"""Candidates that change nothing, of one job."""

COLUMNS = (
    *("wire", "jobs", "kept something", "said, median", "later, median", "least"),
    "all later runs faster",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """What one job has kept, and what came of it later."""

    wire: str
    said: float
    gains: list[float]  # of later runs

    @property
    def confirmed(self) -> bool:
        """Whether all of them are faster."""
        return min(self.gains) > 0


def kept_nothing(jobs: int) -> int:
    """Of so many jobs with candidates that change nothing."""
    found = 0
    for seed in range(jobs):
        with TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            one = tuned(run, seed, QUIET_WIRE, lambda _: nothings(NOTHINGS))
        found += not one.kept
        print(f"{seed}: kept {'; '.join(one.kept) or 'nothing'}", flush=True)
    return found


def repeated(wire: str, seed: int) -> Repeated | None:
    """None: it has kept nothing."""
    rate = WIRES[wire]
    with TemporaryDirectory() as folder:
        one = tuned(Path(folder) / "run", seed, rate, ranking_of)
    if not one.kept:
        return None
    gains = later_gains(one, seed, rate, LATER)
    found = Repeated(wire=wire, said=one.gain_share, gains=gains)
    print(f"{wire}, {seed}: {found.said:.2%}, later {gains}", flush=True)
    return found


def page(jobs: int, nothing: int, noisy: int, found: Sequence[Repeated]) -> str:
    """Both tables."""
    lines = [
        "# What a tuning keeps of noise",
        "",
        "    python -m tests.benchmarks.autotune_noise --write",
        "",
        "Virtual time, with noise added to each block's compute.",
        "",
        f"Of {jobs} jobs with {NOTHINGS} candidates that change nothing,",
        f"{nothing} kept nothing.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    for wire in WIRES:
        mine = [one for one in found if one.wire == wire]
        gains = [gain for one in mine for gain in one.gains]
        cells = ["-"] * 4
        if mine:
            cells = [
                f"{statistics.median(one.said for one in mine):.2%}",
                f"{statistics.median(gains):.2%}",
                f"{min(gains):.2%}",
                f"{sum(one.confirmed for one in mine)} of {len(mine)}",
            ]
        lines.append(f"| {wire} | {noisy} | {len(mine)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Both, and a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="the results page")
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--noisy", type=int, default=6, help="jobs on each wire")
    args = parser.parse_args()
    nothing = kept_nothing(args.jobs)
    each = [repeated(wire, seed) for wire in WIRES for seed in range(args.noisy)]
    found = [one for one in each if one is not None]
    text = page(args.jobs, nothing, args.noisy, found)
    print(text)
    if args.write:
        RESULTS.write_text(text)
    wrong = args.jobs - nothing > args.jobs // 40
    raise SystemExit(int(wrong or not all(one.confirmed for one in found)))


if __name__ == "__main__":
    main()
