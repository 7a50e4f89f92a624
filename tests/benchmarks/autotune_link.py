"""A job that tunes itself over real sockets, and what plain runs repeat of its gain.

    python -m tests.benchmarks.autotune_link [--rate 100mbit] [--repeats 3]

Needs root, `ip` and `tc`. Two ranks, each in a network namespace of its own, joined by
a veth pair that a token bucket limits to --rate at both ends. The script has FSDP2's
defaults and knows nothing of it; compute is sleeps, so that the other users of the
machine do not decide. `run --autotune` tries and keeps; then plain runs alternate,
without the plan and with it (`--apply`). Prints both gains, and writes
`autotune-link-results.md` beside this file; ends with 1 unless every run with the plan
is faster than those beside it, and by what was said to within 5 % of the step.
"""

# ruff: noqa: T201 - it prints a table

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.run import open_run
from tests.rig.ranks import SCRIPTS
from tests.rig.slow_link import slow_link, start_ranks

RESULTS = Path(__file__).with_name("autotune-link-results.md")

PREFIX = "autotune"
"""Of the names of namespaces and interfaces: two ranks, 0 and 1."""

SLEEP = str(SCRIPTS / "sleep.py")

WITHIN = 0.05
"""Of the step: what was said and what was repeated may differ by so much."""


def run(folder: Path, steps: int, *options: str) -> str:
    """Two ranks; what they said on stderr."""
    argv = [
        *("-m", "fsdpdoctor", "run", "--no-report"),
        *("--out", str(folder), *options, SLEEP, "--steps", str(steps)),
        *("--forward-ms", "10", "--backward-ms", "20"),
    ]
    place = json.dumps({"folder": str(folder), "run_id": folder.name})
    ranks = start_ranks(
        PREFIX,
        argv,
        {"FSDPDOCTOR_RUN": place},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        said = [rank.communicate()[1] for rank in ranks]
    finally:
        for rank_process in ranks:
            rank_process.kill()  # where it was interrupted
    if any(rank.returncode for rank in ranks):
        raise SystemExit("\n".join(said))
    return said[0]


def step_ms(folder: Path) -> float:
    """The median of a recorded run's judged steps."""
    ranks = measure(open_run(folder)).ranks
    found = [rank.steps.rows(rank.judged).duration_ns.tolist() for rank in ranks]
    return float(statistics.median(found[0])) / 1e6


def main() -> None:
    """Tune, repeat, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="100mbit", help="as tc takes it")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400, help="of the tuned run")
    args = parser.parse_args()
    with slow_link(args.rate, PREFIX), tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        said = run(folder / "tuned", args.steps, "--autotune")
        ours = [line for line in said.splitlines() if "autotune:" in line]
        print("\n".join(ours), flush=True)
        plan = folder / "tuned" / "plan.json"
        if not plan.exists():
            raise SystemExit("nothing was kept")
        pairs = []
        for number in range(args.repeats):
            lengths = []
            for name, options in (("plain", []), ("kept", ["--apply", str(plan)])):
                there = folder / f"{name}-{number}"
                run(there, 30, "--every", "1", *options)
                lengths.append(step_ms(there))
            pairs.append((lengths[0], lengths[1]))
            print(f"without {lengths[0]:.1f} ms, with {lengths[1]:.1f} ms", flush=True)
    raise SystemExit(report(args, ours, pairs))


def report(
    args: argparse.Namespace, said: list[str], pairs: list[tuple[float, float]]
) -> int:
    """Print and write it; 0 where the gain is repeated."""
    over = next(line for line in said if "autotune: over" in line or "not over" in line)
    found = re.search(r"the step takes -([\d.]+) %", over)
    promised = float(found[1]) / 100 if found else 0.0
    gains = [1 - kept / plain for plain, kept in pairs]
    lines = [
        "# The gain of a tuning, repeated",
        "",
        f"`python -m tests.benchmarks.autotune_link --rate {args.rate}`: two",
        "processes over a veth pair limited by a token bucket.",
        "",
        "What rank 0 said:",
        "",
        *(f"    {line}" for line in said),
        "",
        "| plain run without | with the plan | shorter by |",
        "|---|---|---|",
        *(
            f"| {plain:.1f} ms | {kept:.1f} ms | {gain:.1%} |"
            for (plain, kept), gain in zip(pairs, gains, strict=True)
        ),
        "",
        f"Said: {promised:.1%}; repeated: {statistics.fmean(gains):.1%}.",
    ]
    text = "\n".join(lines) + "\n"
    RESULTS.write_text(text)
    print(text)
    repeated = all(abs(gain - promised) <= WITHIN and gain > 0 for gain in gains)
    return 0 if repeated else 1


if __name__ == "__main__":
    main()
