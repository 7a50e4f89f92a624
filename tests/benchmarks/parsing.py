"""What reading traces costs: C, msgspec, a warm cache, and HTA in its own environment.

    python -m tests.benchmarks.parsing --events 1000000 --hta /path/to/hta/bin/python
    python -m tests.benchmarks.parsing --events 4000000 --rounds 1 --hta ...
    python -m tests.benchmarks.parsing --events 500000 --ranks 8 --rounds 1 --hta ...

Every candidate runs in a process of its own, in turns, so that load on the machine
falls on all alike; processor seconds are the figure to trust, and ratios are of one
run of this command. The traces are generated: FSDP2 labels, launches, flows, and
operators with their ids. HTA wants 0.5.0 with pandas below 3
(`pip install HolisticTraceAnalysis==0.5.0 'pandas<3'`); it is left out where `--hta`
is not given. With `--ranks`, whole commands are held against each other: `fsdpdoctor
analyze` against HTA's load and overlap.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from isal import igzip

from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from tests.importers.generated import generated_rank

LAYERS, STEPS, OPERATORS = 32, 9, 6
EVENTS_PER_KERNEL = OPERATORS + 4
"""Operators, the launch, the kernel, and the two ends of its flow."""

OURS = """
import resource, json, sys, time
from pathlib import Path
from fsdpdoctor.importers.c_scan import c_decoder
from fsdpdoctor.importers.cache import cached_scan
from fsdpdoctor.importers.json_scan import decode_chunk
from fsdpdoctor.importers.kineto import attribute, on_unix_clock, rank_data
from fsdpdoctor.importers.scan import scan_file
from fsdpdoctor.intervals import intersect, total_ns
from fsdpdoctor.rank_measures import measure_rank
from fsdpdoctor.schema import Spans
from fsdpdoctor.timeline import communication, device_work
path, how, cache = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
wall, begin = time.time(), time.process_time()
if how == "cache":
    trace = cached_scan(path, cache)
else:
    trace = scan_file(path, decode_chunk if how == "msgspec" else c_decoder())
read, events = time.process_time(), trace.health.events
attributed = attribute(on_unix_clock(trace), 0, 8)
del trace
data = rank_data(attributed)
del attributed
cut = time.process_time()
measure_rank(data)
measured = time.process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
wall = time.time() - wall
spans = Spans.concat([*(step.spans for step in data.steps), data.outside])
overlap = time.process_time()
total_ns(intersect(communication(spans), device_work(spans)))
overlapped = time.process_time()
print(json.dumps({
    "events": events,
    "load_s": read - begin,
    "units_s": cut - read,
    "measures_s": measured - cut,
    "overlap_s": overlapped - overlap,
    "wall_s": wall,
    "peak_mb": peak,
}))
"""

HTA = """
import resource, json, sys, time
from hta.trace_analysis import TraceAnalysis
wall, begin = time.time(), time.process_time()
analysis = TraceAnalysis(trace_dir=sys.argv[1])
read = time.process_time()
analysis.get_comm_comp_overlap(visualize=False)
measured = time.process_time()
print(json.dumps({
    "load_s": read - begin,
    "overlap_s": measured - read,
    "wall_s": time.time() - wall,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""

Figures = dict[str, float]
HEAD_BYTES = 1 << 16
PR_SET_CHILD_SUBREAPER = 36  # of Linux' prctl


def generate(folder: Path, events: int) -> Path:
    """A rank's trace of about so many events, unless it is there."""
    path = folder / "rank0.json.gz"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    passes = 2 * (LAYERS + 1) * STEPS
    kernels = max(events // EVENTS_PER_KERNEL // passes, 1)
    data = generated_rank(layers=LAYERS, steps=STEPS, kernels=kernels)
    made_from = f"made up for a benchmark of {events:,} events"
    options = TraceOptions(made_from=made_from, flows=True, operators=OPERATORS)
    write_trace(data, path, options)
    return path


def copy_for_rank(path: Path, rank: int) -> None:
    """The same trace as another rank's."""
    new = path.with_name(f"rank{rank}.json.gz")
    if new.exists():
        return
    with igzip.open(path) as old, igzip.open(new, "wb", compresslevel=1) as file:  # type: ignore[no-untyped-call]
        head = old.read(HEAD_BYTES)
        assert head.count(b'"rank": 0') == 1
        file.write(head.replace(b'"rank": 0', b'"rank": %d' % rank))
        shutil.copyfileobj(old, file, HEAD_BYTES)


def run(command: Sequence[str]) -> Figures:
    """One candidate once: the last line that it prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def run_whole(command: Sequence[str]) -> Figures:
    """A command once, its worker processes included."""
    # Workers that outlive their parent become ours: they must be counted, too.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    cpu_s, peak_mb, wall_s = 0.0, 0.0, 0.0
    while True:
        try:
            pid, status, used = os.wait4(-1, 0)
        except ChildProcessError:
            return {"cpu_s": cpu_s, "wall_s": wall_s, "peak_mb": peak_mb}
        cpu_s += used.ru_utime + used.ru_stime
        peak_mb = max(peak_mb, used.ru_maxrss / 1024)  # of the largest process
        if pid == child.pid:
            wall_s = time.monotonic() - begin
            if status:
                raise SystemExit(f"failed with {status}: {command}")


def candidates(path: Path, cache: Path, hta: str | None) -> dict[str, list[str]]:
    """The commands, by name. The cache is filled by the first round."""
    found = {
        how: [sys.executable, "-c", OURS, str(path), how, str(cache)]
        for how in ("c", "msgspec", "cache")
    }
    if hta is not None:
        found["hta"] = [hta, "-c", HTA, str(path.parent)]
    return found


def whole_commands(folder: Path, hta: str | None) -> dict[str, list[str]]:
    """The commands over a folder of ranks, by name."""
    ours = [sys.executable, "-m", "fsdpdoctor", "analyze", str(folder), "--no-cache"]
    found = {"c": [*ours, "--format", "json", "--jobs", "2"]}
    if hta is not None:
        found["hta"] = [hta, "-c", HTA, str(folder)]
    return found


def main() -> None:
    """Generate, run the rounds, print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hta", help="python of an environment with HTA 0.5.0")
    parser.add_argument("--keep", type=Path, help="folder for traces, used again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        keep = given.keep or Path(name)
        folder = keep / f"trace-{given.events}-{given.ranks}"
        path = generate(folder, given.events)
        for rank in range(1, given.ranks):
            copy_for_rank(path, rank)
        if given.ranks > 1:
            runner, commands = run_whole, whole_commands(folder, given.hta)
        else:
            runner, commands = run, candidates(path, Path(name) / "cache", given.hta)
            run(commands["cache"])  # fills it
        rounds: dict[str, list[Figures]] = {how: [] for how in commands}
        for _ in range(given.rounds):
            for how, command in commands.items():
                rounds[how].append(runner(command))
        report(rounds, path.stat().st_size * given.ranks)


def report(rounds: dict[str, list[Figures]], size: int) -> None:
    """One line per candidate: medians over the rounds, and ratios to `c`."""
    medians = {
        how: {key: statistics.median(r[key] for r in found) for key in found[0]}
        for how, found in rounds.items()
    }
    write = sys.stdout.write
    write(f"{medians['c'].get('events', 0):,.0f} events, {size / 1e6:.1f} MB packed\n")
    keys = [key for key in medians["c"] if key != "events"]
    write("          " + "".join(f"{key:>12}" for key in keys))
    write("  of c: " + " ".join(key for key in RATIOS if key in keys) + "\n")
    for how, m in medians.items():
        cells = (f"{m[k]:12.3f}" if k in m else f"{'-':>12}" for k in keys)
        ratios = (f"{m[k] / medians['c'][k]:.2f}x" for k in RATIOS if k in m)
        write(f"{how:10}" + "".join(cells) + "  " + " ".join(ratios) + "\n")


RATIOS = ("cpu_s", "load_s", "overlap_s", "wall_s", "peak_mb")

if __name__ == "__main__":
    main()
