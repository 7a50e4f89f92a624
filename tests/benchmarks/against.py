"""How fast this tree is beside another commit, in turns, round after round.

    python -m tests.benchmarks.against COMMIT [--rounds 5] [--pages 0]

Processor time of loading and measuring a generated trace (`ours`), and of the whole
command `analyze` on that trace and on gallery runs; with `--pages N`, also first paint,
zooms and bursts of tile requests at a million spans, N rounds of each. The other commit
is asked through the same commands in a work tree of its own. Prints medians and their
ratio; takes about a minute on two quiet cores, and as much for each round of pages. On
a machine that is not quiet: `chrt -r 10 python -m ...`, as its administrator.
"""

# ruff: noqa: T201 - it prints a table

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from fsdpdoctor.importers.reader.trace_cache import FOLDER_VARIABLE
from tests.benchmarks.dashboard_browser import Figures, timeline_round
from tests.benchmarks.dashboard_load import open_run, parallel_requests
from tests.benchmarks.other_tree import ROOT, compile_modules, tree_of
from tests.benchmarks.parsing import generate
from tests.benchmarks.processes import run
from tests.dashboard.conftest import Served, serve_runs

GALLERY = ("healthy-llama", "exposed-all-gather", "head-outside")
"""Recorded runs of the other commit's gallery; those that it has are asked."""

RUN, OTHER = "run", "another"
"""Of a million spans each: the one that is looked at, and one that is being read."""

WRITE_RUNS = """
import sys
from pathlib import Path
from tests.dashboard.synthetic import shape_of, write_run
for path in sys.argv[1:]:
    write_run(Path(path), shape_of(1_000_000))
"""

Table = dict[str, dict[str, list[float]]]
"""For each side: what was measured, and its figures."""


@contextlib.contextmanager
def standing_in(tree: Path) -> Iterator[None]:
    """Commands run in a tree, and import its packages."""
    before, path = Path.cwd(), os.environ.get("PYTHONPATH")
    os.chdir(tree)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(tree), str(tree / "dashboard")])
    try:
        yield
    finally:
        os.chdir(before)
        del os.environ["PYTHONPATH"]
        if path is not None:
            os.environ["PYTHONPATH"] = path


def commands_s(tree: Path, trace: Path, runs: dict[str, Path]) -> dict[str, float]:
    """Processor seconds of each stage and command, in one tree, once."""
    with standing_in(tree):
        ours = [sys.executable, "-m", "tests.benchmarks.ours", str(trace), "c", "-"]
        stages = json.loads(run(ours).output)
        found = {name: s for name, s in stages.items() if name != "events"}
        for name, path in {"trace": trace, **runs}.items():
            command = ["analyze", str(path), "--no-cache", "--jobs", "1"]
            found[f"analyze {name}"] = run(
                [sys.executable, "-m", "fsdpdoctor", *command, "--format", "json"]
            ).cpu_s
        return found


@contextlib.contextmanager
def served(tree: Path, runs: Sequence[Path], cache: Path) -> Iterator[Served]:
    """The tree's own server, with a cache of its own."""
    os.environ[FOLDER_VARIABLE] = str(cache)
    with standing_in(tree), serve_runs(*runs) as server:
        yield server


def paints_ms(servers: dict[str, Served], rounds: int, figures: Table) -> None:
    """First paint and zooms of each tree's timeline, in turns."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        for _ in range(rounds):
            for side, server in servers.items():
                page = Figures()
                timeline_round(driver, server, RUN, page)
                for name in ("cold_ms", "warm_ms", "frame_ms", "sharp_ms"):
                    figures[side][f"page {name}"] += getattr(page, name)


def pages(trees: dict[str, Path], folder: Path, rounds: int, figures: Table) -> None:
    """First paints, then bursts of tile requests while another run is read."""
    runs = {}
    for side, tree in trees.items():
        with standing_in(tree):
            runs[side] = [folder / side / name for name in (RUN, OTHER)]
            run([sys.executable, "-c", WRITE_RUNS, *map(str, runs[side])])
    with contextlib.ExitStack() as stack:
        servers = {
            side: stack.enter_context(
                served(tree, runs[side][:1], folder / f"kept-{side}")
            )
            for side, tree in trees.items()
        }
        for server in servers.values():
            open_run(server, RUN)
        paints_ms(servers, rounds, figures)
    for number in range(rounds):
        for side, tree in trees.items():
            cache = folder / f"cache-{side}-{number}"
            with served(tree, runs[side], cache) as server:
                open_run(server, RUN)
                burst = parallel_requests(server, RUN, OTHER)
                figures[side]["tiles p50 ms"].append(burst.percentile(0.5))
                figures[side]["tiles p95 ms"].append(burst.percentile(0.95))


def main() -> None:
    """Measure in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pages", type=int, default=0)
    parser.add_argument("--events", type=int, default=1_000_000)
    given = parser.parse_args()
    figures: Table = {"old": defaultdict(list), "new": defaultdict(list)}
    loads = [os.getloadavg()[0]]
    compile_modules()
    with (
        tempfile.TemporaryDirectory() as folder,
        tree_of(given.commit, Path(folder)) as tree,
    ):
        trees = {"old": tree, "new": ROOT}
        trace = generate(Path(folder), given.events)
        asked = {name: tree / "traces" / name for name in GALLERY}
        runs = {name: path for name, path in asked.items() if path.is_dir()}
        for number in range(given.rounds):
            for side, place in trees.items():
                loads.append(os.getloadavg()[0])
                print(f"round {number + 1}, {side}: load {loads[-1]:.1f}", flush=True)
                for name, figure in commands_s(place, trace, runs).items():
                    figures[side][name].append(figure)
        pages(trees, Path(folder), given.pages, figures)
        loads.append(os.getloadavg()[0])
    print(f"load {min(loads):.1f} to {max(loads):.1f}")
    print(f"{'':<24}{'old':>10}{'new':>10}{'new/old':>10}  least/least")
    for name, old in figures["old"].items():
        new = figures["new"][name]
        one, other = statistics.median(old), statistics.median(new)
        least = min(new) / min(old)
        print(f"{name:<24}{one:>10.3f}{other:>10.3f}{other / one:>10.3f}{least:>13.3f}")


if __name__ == "__main__":
    main()
