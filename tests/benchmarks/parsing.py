"""What reading traces costs: C, msgspec, a warm cache, and HTA in its own environment.

    python -m tests.benchmarks.parsing --hta /path/to/hta/bin/python
    python -m tests.benchmarks.parsing --events 16000000 --ranks 0    # ours alone

A trace of 1 and one of 4 million events, and a set of 8 ranks of half a million each,
are generated: FSDP2 labels, launches, flows, and operators with their ids. Every
candidate runs in a process of its own, in turns, so that load on the machine falls on
all alike; processor seconds are the figure to trust, and ratios are of one run of this
command. Of one trace the whole command is compared with a load by orjson, too, where
that is installed (`pip install orjson`). Of the set, first the load alone is compared,
in two processes on either side and with all of them counted; then whole commands,
`fsdpdoctor analyze` against HTA's load and overlap.

Memory is that of the largest process: what is resident at most, and what of it no file
backs (sampled). Long columns are mapped from files (`fsdpdoctor.storage.spill`), whose
pages the system can take back; the second figure is what a process cannot do without.

HTA wants 0.5.0 with pandas below 3 (`pip install HolisticTraceAnalysis==0.5.0
'pandas<3'`); it is left out where neither `--hta` nor FSDPDOCTOR_HTA_PYTHON names its
python, and for traces above `--hta-events` (it takes 1.5 GB for each million).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from isal import igzip

from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from tests.benchmarks import processes
from tests.benchmarks.other_tree import compile_modules
from tests.benchmarks.ours import Figures
from tests.importers.generated import generated_rank

LAYERS, STEPS, OPERATORS = 32, 9, 6
EVENTS_PER_KERNEL = OPERATORS + 4
"""Operators, the launch, the kernel, and the two ends of its flow."""

RANK_EVENTS = 500_000
"""Of each rank of the set."""

HTA = """
import json, logging, resource, sys, warnings
logging.disable(logging.INFO)
warnings.simplefilter("ignore")
def processor_s():
    used = (resource.getrusage(resource.RUSAGE_SELF),
            resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)
from hta.trace_analysis import TraceAnalysis
begin = processor_s()
analysis = TraceAnalysis(trace_dir=sys.argv[1])
read = processor_s()
if sys.argv[2] == "overlap":
    analysis.get_comm_comp_overlap(visualize=False)
print(json.dumps({"load_s": read - begin, "overlap_s": processor_s() - read}))
"""

ORJSON = """
import sys
import orjson
from isal import igzip
with igzip.open(sys.argv[1]) as file:
    events = orjson.loads(file.read())["traceEvents"]
assert len(events) > 1000
"""
"""The quickest general reader of JSON, which learns nothing from what it read."""

MAX_MEMORY_MB = 250
MIN_LOAD = {"c": 30, "msgspec": 8}
MIN_OVERLAP = 100
MIN_WHOLE = {"orjson": 4, "hta": 30}
MAX_WARM_S = 0.1  # for each million events
"""What must be shown: ratios of HTA's processor time to ours, memory, a warm cache."""

HEAD_BYTES = 1 << 16

Rounds = dict[str, list[Figures]]
"""By candidate."""


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
    """One candidate once: what it took, and what it says itself in its last line."""
    cost = processes.run(command)
    *_, last = cost.output.splitlines() or ["{}"]
    said: Figures = json.loads(last) if last.startswith("{") else {}
    return {
        **said,
        "cpu_s": cost.cpu_s,
        "wall_s": cost.wall_s,
        "peak_mb": cost.peak_mb,
        "anon_mb": cost.anon_mb,
    }


def in_turns(commands: dict[str, list[str]], rounds: int) -> Medians:
    """The medians of every candidate's figures, over rounds of all."""
    found: Rounds = {how: [] for how in commands}
    for _ in range(rounds):
        for how, command in commands.items():
            found[how].append(run(command))
    return {
        how: {key: statistics.median(r[key] for r in runs) for key in runs[0]}
        for how, runs in found.items()
    }


Medians = dict[str, Figures]
"""Medians, by candidate."""


def ours(path: Path, how: str, *more: str) -> list[str]:
    """The command of one of our candidates."""
    return [sys.executable, "-m", "tests.benchmarks.ours", str(path), how, *more]


def one_trace(path: Path, rounds: int, hta: str | None) -> None:
    """Every stage of a trace."""
    with tempfile.TemporaryDirectory() as cache:
        commands = {how: ours(path, how, cache) for how in ("c", "msgspec", "cache")}
        if hta is not None:
            commands["hta"] = [hta, "-c", HTA, str(path.parent), "overlap"]
        run(commands["cache"])  # fills it
        medians = in_turns(commands, rounds)
    table(medians, ("load_s", "units_s", "measures_s", "overlap_s"))
    for how, least in MIN_LOAD.items():
        against_hta(medians, how, "load_s", f"load, {how}", least)
    against_hta(medians, "c", "overlap_s", "overlap stage", MIN_OVERLAP)
    memory(medians, ("c", "msgspec", "cache"))
    cold, warm = medians["c"], medians["cache"]
    each = 1e6 * warm["load_s"] / warm["events"]
    shown(
        f"warm re-open {each:.3f} s for each million events, "
        f"{cold['load_s'] / warm['load_s']:.1f}x less than a cold load with c",
        f"below {MAX_WARM_S} s",
        each < MAX_WARM_S,
    )


def whole(path: Path, rounds: int, hta: str | None) -> None:
    """The whole command on a trace, imports and report with it, without a cache."""
    analyze = [sys.executable, "-m", "fsdpdoctor", "analyze", str(path)]
    commands = {"analyze": [*analyze, "--no-cache", "--jobs", "1"]}
    if importlib.util.find_spec("orjson"):
        commands["orjson"] = [sys.executable, "-c", ORJSON, str(path)]
    if hta is not None:
        commands["hta"] = [hta, "-c", HTA, str(path.parent), "overlap"]
    medians = in_turns(commands, rounds)
    write("whole commands: analyze; a load with orjson; HTA's load and overlap\n")
    table(medians, ())
    for other, least in MIN_WHOLE.items():
        if other in medians:
            ratio = medians[other]["cpu_s"] / medians["analyze"]["cpu_s"]
            what = f"analyze, processor time: {ratio:.1f}x less than {other}"
            shown(what, f"at least {least}x", ratio >= least)


def ranks(folder: Path, rounds: int, hta: str | None) -> None:
    """A set of ranks: its load alone, and the whole command."""
    loads = {how: ours(folder, how) for how in MIN_LOAD}
    analyze = [sys.executable, "-m", "fsdpdoctor", "analyze", str(folder)]
    options = ["--no-cache", "--format", "json", "--jobs", "2"]
    whole = {"analyze": [*analyze, *options]}
    if hta is not None:
        loads["hta"] = [hta, "-c", HTA, str(folder), "load"]
        whole["hta"] = [hta, "-c", HTA, str(folder), "overlap"]
    medians = in_turns(loads, rounds)
    write("load alone\n")
    table(medians, ("load_s",))
    for how, least in MIN_LOAD.items():
        against_hta(medians, how, "load_s", f"load of the set, {how}", least)
        against_hta(medians, how, "cpu_s", f"the same with imports, {how}", None)
    memory(medians, MIN_LOAD)
    medians = in_turns(whole, rounds)
    write("whole commands: analyze; HTA's load and overlap\n")
    table(medians, ())
    for key in ("cpu_s", "wall_s", "peak_mb"):
        against_hta(medians, "analyze", key, f"analyze, {key}", None)
    memory(medians, ("analyze",))


def table(medians: Medians, stages: Sequence[str]) -> None:
    """One line per candidate."""
    keys = [*stages, "cpu_s", "wall_s", "peak_mb", "anon_mb"]
    write("          " + "".join(f"{key:>12}" for key in keys) + "\n")
    for how, figures in medians.items():
        cells = (
            f"{figures[key]:12.3f}" if key in figures else f"{'-':>12}" for key in keys
        )
        write(f"{how:10}" + "".join(cells) + "\n")


def against_hta(
    medians: Medians, how: str, key: str, what: str, least: float | None
) -> None:
    """HTA's figure to ours."""
    if "hta" not in medians:
        return
    ratio = medians["hta"][key] / medians[how][key]
    asked = None if least is None else f"at least {least}x"
    shown(f"{what}: {ratio:.1f}x less than HTA", asked, least is None or ratio >= least)


def memory(medians: Medians, candidates: Sequence[str] | dict[str, int]) -> None:
    """The most that a process of ours took."""
    most = max(candidates, key=lambda how: medians[how]["peak_mb"])
    peak = medians[most]["peak_mb"]
    anonymous = max(medians[how]["anon_mb"] for how in candidates)
    shown(
        f"a process has at most {peak:.0f} MB resident ({most}), and {anonymous:.0f} MB"
        " that no file backs",
        f"at most {MAX_MEMORY_MB} MB",
        peak <= MAX_MEMORY_MB,
    )


def shown(what: str, asked: str | None, holds: bool) -> None:
    """A line of results."""
    verdict = "" if asked is None else f" ({asked}: {'yes' if holds else 'NO'})"
    write(f"  {what}{verdict}\n")


def write(text: str) -> None:
    """Print at once: a run takes long."""
    sys.stdout.write(text)
    sys.stdout.flush()


def main() -> None:
    """Generate, run the rounds, print medians, ratios and what they are to be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, nargs="*", default=[1_000_000, 4_000_000])
    parser.add_argument("--ranks", type=int, default=8, help="of the set; 0: no set")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--hta",
        default=os.environ.get("FSDPDOCTOR_HTA_PYTHON"),
        help="python of an environment with HTA 0.5.0",
    )
    parser.add_argument("--hta-events", type=int, default=4_000_000)
    parser.add_argument("--keep", type=Path, help="folder for traces, used again")
    given = parser.parse_args()
    compile_modules()
    with tempfile.TemporaryDirectory() as name:
        keep = given.keep or Path(name)
        for events in given.events:
            path = generate(keep / f"trace-{events}-1", events)
            head(f"{events:,} events", [path])
            hta = given.hta if events <= given.hta_events else None
            one_trace(path, given.rounds, hta)
            whole(path, given.rounds, hta)
        if given.ranks:
            folder = keep / f"trace-{RANK_EVENTS}-{given.ranks}"
            path = generate(folder, RANK_EVENTS)
            for rank in range(1, given.ranks):
                copy_for_rank(path, rank)
            head(f"{given.ranks} ranks of {RANK_EVENTS:,} events", folder.iterdir())
            ranks(folder, given.rounds, given.hta)


def head(what: str, paths: Iterable[Path]) -> None:
    """What is read next, and how busy the machine is with other things."""
    size = sum(path.stat().st_size for path in paths)
    load = os.getloadavg()[0]
    write(f"\n{what}, {size / 1e6:.1f} MB packed; load of the machine {load:.1f}\n")


if __name__ == "__main__":
    main()
