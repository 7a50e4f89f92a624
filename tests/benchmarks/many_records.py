"""A record of many ranks, read here or by a cluster: flat memory, linear time.

    python -m tests.benchmarks.many_records 64 512 4096
    python -m tests.benchmarks.many_records 512 --cluster --pages test-output/pages

Two ranks of a training of 34 units and 20 steps are recorded first (minutes on a busy
machine; `--of FOLDER` takes a record that is there), and their files linked for as many
ranks as are asked. `--cluster` has a local dask cluster of two workers read them, too,
and its JSON must be the same; `--pages FOLDER` opens
the run in a headless browser, of a server that has never seen it and of one that has.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fsdpdoctor.importers.reader.trace_cache import FOLDER_VARIABLE
from tests.benchmarks.fuzz_scan import say
from tests.benchmarks.many_ranks import CLUSTER
from tests.benchmarks.processes import Cost, run

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "rig" / "scripts" / "train.py"
TRAINING = ("--layers", "33", "--steps", "20", "--hidden", "32")
RECORDED = 2
"""Ranks whose records stand for all, in turn."""
CHART = "document.querySelector('.js-plotly-plot .main-svg')"
PAGES = {
    "": "document.querySelector('.verdict')",
    "timeline": "window.fsdpTimeline && fsdpTimeline.sharp",
    "ranks": CHART,
    "units": "document.querySelector('table')",
    "collectives": CHART,
    "memory": CHART,
    "whatif": CHART,
}
"""Pages, and what is true once they are drawn."""


def record(folder: Path) -> Path:
    """A run of two ranks."""
    command = [sys.executable, "-m", "fsdpdoctor", "run", "--nproc-per-node", "2"]
    options = ["--no-report", "--out", str(folder), str(SCRIPT), *TRAINING]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *options], env=environment, check=True)
    return folder


def multiply(recorded: Path, folder: Path, ranks: int) -> Path:
    """The same run as if so many ranks had left it."""
    folder.mkdir()
    head = json.loads((recorded / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(head | {"world_size": ranks}))
    heads = [
        json.loads((recorded / f"rank{rank:05d}.json").read_text())
        for rank in range(RECORDED)
    ]
    everyone = list(range(ranks))
    for rank in range(ranks):
        one = rank % RECORDED
        groups = [g | {"ranks": everyone, "size": ranks} for g in heads[one]["groups"]]
        said = heads[one] | {"rank": rank, "world_size": ranks, "groups": groups}
        stem = folder / f"rank{rank:05d}"
        stem.with_suffix(".json").write_text(json.dumps(said))
        for suffix in (".arrows", ".beat"):
            source = (recorded / f"rank{one:05d}").with_suffix(suffix)
            os.link(source, stem.with_suffix(suffix))
    return folder


def analyze(folder: Path, *options: str) -> Cost:
    """What `fsdpdoctor analyze` takes and says."""
    command = (sys.executable, "-m", "fsdpdoctor", "analyze", "--json", "--no-cache")
    return run((*command, *options, str(folder)))


def show(name: str, ranks: int, cost: Cost) -> None:
    """One line."""
    say(
        f"{name:16} {ranks:5} ranks  wall {cost.wall_s:6.1f} s  processor "
        f"{cost.cpu_s:6.1f} s ({1000 * cost.cpu_s / ranks:4.0f} ms a rank)  peak "
        f"{cost.peak_mb:4.0f} MB, {cost.anon_mb:4.0f} MB that no file backs  "
        f"JSON {len(cost.output) / 1e3:,.0f} kB"
    )


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The address of a scheduler with two workers."""
    script = folder / "cluster.py"
    script.write_text(CLUSTER)
    with subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def peaks_of_workers(scheduler: str) -> list[int]:
    """The most memory that each worker held, in MB."""
    from distributed import Client

    def peak() -> int:
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(s.split()[1]) for s in status if s.startswith("VmHWM")) >> 10

    with Client(scheduler) as client:  # type: ignore[no-untyped-call]
        return list(client.run(peak).values())


def open_pages(folder: Path, ranks: int, pages: Path) -> None:
    """How long a server takes that has never seen the run, and one that finds it in the
    cache, each until a new browser shows every page of it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(folder.parent / "cache"))
        for server in ("first", "second"):
            _one_server(server, folder, ranks, pages)


def _one_server(server: str, folder: Path, ranks: int, pages: Path) -> None:
    from playwright.sync_api import sync_playwright

    from tests.benchmarks.dashboard_browser import new_browser, until
    from tests.benchmarks.dashboard_load import open_run
    from tests.dashboard.conftest import serve_runs

    begin = time.monotonic()
    with serve_runs(folder) as served, sync_playwright() as driver:
        up = time.monotonic() - begin
        seconds = open_run(served, folder.name)
        say(f"{server} server: up in {up:.1f} s, {ranks} ranks open in {seconds:.1f} s")
        for times in ("cold", "warm", "warm"):
            with new_browser(driver) as browser:
                page = browser.new_page()
                page.goto(f"{served.base}assets/style.css?token={served.token}")
                for name, drawn in PAGES.items():
                    begin = time.monotonic()
                    page.goto(f"{served.base}{name}?run={folder.name}")
                    until(page, drawn)
                    took = time.monotonic() - begin
                    say(f"{name or 'overview'}, {times}: {took:.2f} s")
                    page.screenshot(path=pages / f"{name or 'overview'}-{ranks}.png")
        say(f"server: {served.own_mb:.0f} MB, {served.resident_mb:.0f} MB with files")


def main() -> None:
    """Make the runs, and measure what is asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", type=int, nargs="*", default=[64, 512])
    parser.add_argument("--of", type=Path, help="a record of two ranks")
    parser.add_argument("--jobs", default="1")
    parser.add_argument("--no-local", action="store_true")
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--pages", type=Path, help="where their pictures go")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.of and given.of.parent) as name:
        folder = Path(name)
        recorded = given.of or record(folder / "recorded")
        for ranks in given.ranks:
            many = multiply(recorded, folder / f"of-{ranks}", ranks)
            texts = set[str]()
            if not given.no_local:
                cost = analyze(many, "--jobs", given.jobs)
                show(f"{given.jobs} process(es)", ranks, cost)
                texts.add(cost.output)
            if given.cluster:
                with cluster(folder) as scheduler:
                    cost = analyze(many, "--scheduler", scheduler)
                    show("dask, 2 workers", ranks, cost)
                    say(f"peaks of the workers: {peaks_of_workers(scheduler)} MB")
                texts.add(cost.output)
            if len(texts) > 1:
                sys.exit("the JSON of both is not the same")
            if given.pages:
                given.pages.mkdir(parents=True, exist_ok=True)
                open_pages(many, ranks, given.pages)
            shutil.rmtree(many)


if __name__ == "__main__":
    main()
