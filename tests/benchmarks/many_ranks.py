"""A job of many ranks, analysed here and by a cluster: flat memory, linear time.

    python tests/benchmarks/many_ranks.py                       # 256 ranks, minutes
    python tests/benchmarks/many_ranks.py --ranks 32 --events 50000

Synthetic traces are written first, each of about --events events, and analysed in sets
of a quarter, a half and all ranks, with --jobs processes. Then a local dask cluster of
two workers reads all of them (extra [cluster]); its JSON must be the same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click
from isal import igzip

sys.path.insert(0, str(Path(__file__).parents[2]))

from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from fsdpdoctor.quantities import MIB, US
from tests.importers.generated import generated_rank

LAYERS = 16
STEPS = 5
OPERATORS = 20
"""CPU operators for each launch: what fills a trace of a real training."""

CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""

POLL_S = 0.2
"""Between looks at the processes. Their peaks are the kernel's own, so that only what
the last moments of a process add can be missed."""

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one analysis took."""

    wall_s: float
    processor_s: float  # of all its processes
    peaks_bytes: tuple[int, ...]  # of each process, the command's own first


def write_all(folder: Path, ranks: int, events: int) -> None:
    """All ranks' traces: of one that is made, with each rank's number in its head."""
    passes = STEPS * (2 * LAYERS + 2)
    # A kernel, its launch and operators, and the two ends of its arrow.
    kernels = max(1, events // (passes * (4 + OPERATORS)))
    data = generated_rank(
        world_size=ranks,
        layers=LAYERS,
        steps=STEPS,
        kernels=kernels,
        kernel_ns=8_000 * US // kernels,
    )
    made = folder / "made.json"
    options = TraceOptions(made_from="a benchmark", flows=True, operators=OPERATORS)
    write_trace(data, made, options)
    head, rank_key, events_text = made.read_bytes().partition(b'"rank": 0,')
    assert rank_key
    made.unlink()
    for rank in range(ranks):
        text = b"".join((head, b'"rank": %d,' % rank, events_text))
        packed: bytes = igzip.compress(text, 1)
        (folder / f"rank{rank:05d}.json.gz").write_bytes(packed)


class Watch(threading.Thread):
    """Looks at the processes of some sessions until it is told to stop."""

    def __init__(self, sessions: set[int]) -> None:
        super().__init__(daemon=True)
        self._sessions = sessions
        self._over = threading.Event()
        self.peaks: dict[int, int] = {}
        self.processor_s: dict[int, float] = {}

    def run(self) -> None:
        """Look, and wait."""
        while not self._over.wait(POLL_S):
            for folder in Path("/proc").iterdir():
                if folder.name.isdecimal():
                    with contextlib.suppress(OSError, ValueError, StopIteration):
                        self._look(folder)

    def _look(self, folder: Path) -> None:
        stat = (folder / "stat").read_text().rpartition(")")[2].split()
        if int(stat[3]) not in self._sessions:
            return
        lines = (folder / "status").read_text().splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM"))
        pid = int(folder.name)
        self.peaks[pid] = int(peak.split()[1]) * 1024
        self.processor_s[pid] = (int(stat[11]) + int(stat[12])) / TICKS

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self.join()


def analyze(
    paths: list[Path], *options: str, sessions: Iterable[int] = ()
) -> tuple[Cost, str]:
    """Run `fsdpdoctor analyze` in a session of its own; its cost, with that of other
    sessions that work for it, and its JSON.
    """
    command = (sys.executable, "-m", "fsdpdoctor", "analyze", "--json", "--no-cache")
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, *options, *map(str, paths)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        watch = Watch({process.pid, *sessions})
        watch.start()
        text, _ = process.communicate()
        watch.stop()
    if process.returncode:
        sys.exit(f"analyze ended with {process.returncode}")
    others = [peak for pid, peak in watch.peaks.items() if pid != process.pid]
    cost = Cost(
        wall_s=time.perf_counter() - began,
        processor_s=sum(watch.processor_s.values()),
        peaks_bytes=(watch.peaks.get(process.pid, 0), *sorted(others, reverse=True)),
    )
    return cost, text


def show(name: str, ranks: int, cost: Cost) -> None:
    """One line."""
    peaks = ", ".join(f"{peak / MIB:.0f}" for peak in cost.peaks_bytes[:3])
    click.echo(
        f"{name:<16} {ranks:5d} ranks  wall {cost.wall_s:7.1f} s  processor "
        f"{cost.processor_s:7.1f} s ({1000 * cost.processor_s / ranks:5.0f} ms/rank)  "
        f"peaks: {peaks} MiB"
    )


def on_cluster(paths: list[Path], folder: Path) -> tuple[Cost, str]:
    """The same through a local cluster."""
    script = folder / "cluster.py"
    script.write_text(CLUSTER)
    with subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        try:
            return analyze(paths, "--scheduler", address, sessions={process.pid})
        finally:
            process.stdin.close()


def main() -> None:
    """Write, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=256, help="4 or more")
    parser.add_argument("--events", type=int, default=200_000, help="of each rank")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, help="where traces are written, and kept"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"rank{rank:05d}.json.gz" for rank in range(asked.ranks)]
        if not all(path.exists() for path in paths):
            write_all(folder, asked.ranks, asked.events)
        size = sum(path.stat().st_size for path in paths)
        click.echo(f"{asked.ranks} traces, {size / MIB:.0f} MiB compressed")
        costs: dict[int, Cost] = {}
        text = ""
        for ranks in (asked.ranks // 4, asked.ranks // 2, asked.ranks):
            costs[ranks], text = analyze(paths[:ranks], "--jobs", str(asked.jobs))
            show(f"{asked.jobs} processes", ranks, costs[ranks])
        events = json.loads(text)["health"]["events"]
        click.echo(f"{events:,} events, {events // asked.ranks:,} of each rank")
        # Differences: every analysis has the same seconds of start, whatever it reads.
        (a, quarter), (b, half), (c, whole) = costs.items()
        first = (half.processor_s - quarter.processor_s) / (b - a)
        second = (whole.processor_s - half.processor_s) / (c - b)
        click.echo(
            f"each further rank: {1000 * first:.0f} ms of processor time up to {b} "
            f"ranks, {1000 * second:.0f} ms up to {c}"
        )
        grown = [
            b / a for a, b in zip(quarter.peaks_bytes, whole.peaks_bytes, strict=False)
        ]
        click.echo(f"peaks, most to fewest: {', '.join(f'{g:.2f}' for g in grown[:3])}")
        cost, through = on_cluster(paths, Path(temporary))
        show("dask, 2 workers", asked.ranks, cost)
        same = through == text
        click.echo(f"JSON of both is {'the same' if same else 'NOT THE SAME'}")
        sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
