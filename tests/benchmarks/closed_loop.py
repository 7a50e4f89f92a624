"""Tune a script over real sockets: two ranks, two network namespaces, a slow wire.

    python -m tests.benchmarks.closed_loop [--rate 100mbit] [--max-runs 8] [--llama]

Needs root, `ip` and `tc`: `tests/rig/slow_link.py`. The script has FSDP2's defaults: on
a CPU every gather then blocks. `tune` should find explicit prefetch with asynchronous
unshards. Compute is sleeps, so that the other users of the machine do not decide; with
--llama it is the rig's Llama, and needs a quiet one. Ends with 1 unless the measured
exposed all-gather time fell by half and all ranks' parameters are the same to the bit.
"""

# ruff: noqa: T201 - it prints a table

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.rig.ranks import ROOT, SCRIPTS, TRAIN
from tests.rig.slow_link import slow_link, start_ranks

PREFIX = "fsdpdoctor"
"""Of the names of namespaces and interfaces: two ranks, 0 and 1."""

SLEEP = SCRIPTS / "sleep.py"

MUST_FALL = 0.5
"""The share of exposed all-gather time that must be gone."""


def main() -> None:
    """Tune, print predicted against measured, and check what came of it."""
    if sys.argv[1:2] == ["--as-launcher"]:
        raise SystemExit(run_ranks(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="100mbit", help="as tc takes it")
    parser.add_argument("--max-runs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--llama", action="store_true", help="compute for real")
    args = parser.parse_args()
    with slow_link(args.rate, PREFIX), tempfile.TemporaryDirectory() as folder:
        found = tune(args, Path(folder))
    raise SystemExit(check(found))


def tune(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What `tune --json` says."""
    me = shlex.join([sys.executable, "-m", "tests.benchmarks.closed_loop"])
    llama = (str(TRAIN), "--hidden", "256", "--sequence", "256", "--layers", "6")
    command = [
        *(sys.executable, "-m", "fsdpdoctor", "tune"),
        *("--launcher", f"{me} --as-launcher", "--same-bits", "--json"),
        *("--max-runs", str(args.max_runs), "--steps", str(args.steps)),
        *("--out", str(folder / "tune")),
        *(llama if args.llama else (str(SLEEP),)),
        *("--steps", "1000"),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(found: dict[str, Any]) -> int:
    """Print the table; 0 where the loop is closed."""
    if found["withheld"]:
        print(found["withheld"])
    line = "{:<58} {:>9} {:>9} {:>9} {:>9}  {}"
    print(line.format("", "step", "step", "exposed", "exposed", ""))
    print(line.format("change", "predicted", "measured", "predicted", "measured", ""))
    for row in (found["baseline"], *found["candidates"]):
        predicted = row.get("predicted")
        print(
            line.format(
                row.get("summary", "as it is"),
                milliseconds(predicted and predicted["step_ns"]),
                milliseconds(row["step_ns"]),
                milliseconds(predicted and predicted["exposed_ns"]["all_gather"]),
                milliseconds(row["exposed_ns"].get("all_gather")),
                row.get("failure") or row.get("verdict", ""),
            )
        )
    kept, baseline = found["kept"], found["baseline"]
    if kept is None:
        print("no change was kept")
        return 1
    before, after = (row["exposed_ns"]["all_gather"] for row in (baseline, kept))
    bits = {tuple(bits) for row in (baseline, kept) for bits in row["bits"]}
    fell = 1 - after / before
    print(
        f"kept: {kept['summary']}; exposed all-gather time {milliseconds(before)} -> "
        f"{milliseconds(after)} ms a step ({fell:.0%} less); parameters after the last "
        f"step {'the same to the bit' if len(bits) == 1 else 'DIFFER'}"
    )
    explicit = {"forward_prefetch", "unshard_async_op"} <= set(kept["plan"])
    return 0 if explicit and fell >= MUST_FALL and len(bits) == 1 else 1


def milliseconds(ns: float | None) -> str:
    """Nanoseconds for a table."""
    return "" if ns is None else f"{ns / 1e6:.1f}"


def run_ranks(argv: list[str]) -> int:
    """Be `tune`'s launcher: `python ARGV...` in each namespace, as two ranks."""
    ranks = start_ranks(PREFIX, argv, {"PYTHONUNBUFFERED": "1"})
    statuses = [rank.wait() for rank in ranks]
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    main()
