"""What reading a trace costs: C, msgspec, a warm cache, and HTA in its own environment.

    python -m tests.benchmarks.parsing --events 1000000
    python -m tests.benchmarks.parsing --events 4000000 --hta /path/to/hta/bin/python

Every candidate runs in a process of its own, in turns, so that load on the machine
falls on all alike; processor seconds are the figure to trust, and ratios are of one
run of this command. The trace is generated: FSDP2 labels, launches, flows, operators.
HTA wants 0.5.0 with pandas below 3 (`pip install HolisticTraceAnalysis==0.5.0
'pandas<3'`); it is left out where `--hta` is not given.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

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
from fsdpdoctor.importers.kineto import on_unix_clock, rank_data
from fsdpdoctor.importers.scan import scan_file
from fsdpdoctor.rank_measures import measure_rank
path, how, cache = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
wall, begin = time.time(), time.process_time()
if how == "cache":
    trace = cached_scan(path, cache)
else:
    trace = scan_file(path, decode_chunk if how == "msgspec" else c_decoder())
read = time.process_time()
data = rank_data(on_unix_clock(trace), 0, 8)
attributed = time.process_time()
measure_rank(data)
measured = time.process_time()
print(json.dumps({
    "events": trace.health.events,
    "load_s": read - begin,
    "units_s": attributed - read,
    "measures_s": measured - attributed,
    "wall_s": time.time() - wall,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
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
    "measures_s": measured - read,
    "wall_s": time.time() - wall,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""

Figures = dict[str, float]


def generate(folder: Path, events: int) -> Path:
    """A rank's trace of about so many events."""
    passes = 2 * (LAYERS + 1) * STEPS
    kernels = max(events // EVENTS_PER_KERNEL // passes, 1)
    data = generated_rank(layers=LAYERS, steps=STEPS, kernels=kernels)
    path = folder / "rank0.json.gz"
    made_from = f"made up for a benchmark of {events:,} events"
    options = TraceOptions(made_from=made_from, flows=True, operators=OPERATORS)
    write_trace(data, path, options)
    return path


def run(command: Sequence[str]) -> Figures:
    """One candidate once: the last line that it prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def candidates(path: Path, cache: Path, hta: str | None) -> dict[str, list[str]]:
    """The commands, by name. The cache is filled by the first round."""
    found = {
        how: [sys.executable, "-c", OURS, str(path), how, str(cache)]
        for how in ("c", "msgspec", "cache")
    }
    if hta is not None:
        found["hta"] = [hta, "-c", HTA, str(path.parent)]
    return found


def main() -> None:
    """Generate, run the rounds, print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hta", help="python of an environment with HTA 0.5.0")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "trace"
        folder.mkdir()
        path = generate(folder, given.events)
        size = path.stat().st_size
        commands = candidates(path, Path(name) / "cache", given.hta)
        run(commands["cache"])  # fills it
        rounds: dict[str, list[Figures]] = {how: [] for how in commands}
        for _ in range(given.rounds):
            for how, command in commands.items():
                rounds[how].append(run(command))
    report(rounds, size)


def report(rounds: dict[str, list[Figures]], size: int) -> None:
    """One line per candidate, medians over the rounds."""
    medians = {
        how: {key: statistics.median(r[key] for r in found) for key in found[0]}
        for how, found in rounds.items()
    }
    write = sys.stdout.write
    write(f"{medians['c']['events']:,.0f} events, {size / 1e6:.1f} MB packed\n")
    write("         load cpu s  units  measures  wall s  peak MB  load cpu / c\n")
    for how, m in medians.items():
        ratio = m["load_s"] / medians["c"]["load_s"]
        write(
            f"{how:8} {m['load_s']:10.2f} {m.get('units_s', 0):6.2f} "
            f"{m['measures_s']:9.3f} {m['wall_s']:7.2f} {m['peak_mb']:8.0f} "
            f"{ratio:12.2f}\n"
        )


if __name__ == "__main__":
    main()
