"""What `parsing` times of ours, in a process of its own: prints its figures as JSON.

python -m tests.benchmarks.ours TRACE c|msgspec|cache CACHE_FOLDER
python -m tests.benchmarks.ours FOLDER_OF_RANKS c|msgspec
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from fsdpdoctor.analysis.overlap import overlap_of_capture
from fsdpdoctor.analysis.rank_measures import measure_rank
from fsdpdoctor.importers.kineto.source import attribute, on_unix_clock, rank_data
from fsdpdoctor.importers.reader.decode_c import c_decoder
from fsdpdoctor.importers.reader.decode_json import decode_chunk
from fsdpdoctor.importers.reader.read_trace import scan_file
from fsdpdoctor.importers.reader.trace_cache import cached_scan
from fsdpdoctor.importers.reader.trace_file import TraceFile

PROCESSES = 2
"""As `analyze --jobs 2`, and as HTA takes them on a machine of two processors."""

Figures = dict[str, float]


def read(path: Path, how: str, cache: Path) -> TraceFile:
    """The columns of a trace."""
    if how == "cache":
        return cached_scan(path, cache)
    decode = decode_chunk if how == "msgspec" else c_decoder(every_op=False)
    if decode is None:
        raise SystemExit("the C extension is not built here")
    return scan_file(path, decode)


def figures(path: Path, how: str, cache: Path) -> Figures:
    """Processor seconds of each stage, for one trace."""
    begin = time.process_time()
    trace = read(path, how, cache)
    loaded, events = time.process_time(), trace.health.events
    attributed = attribute(on_unix_clock(trace), 0, 8)
    del trace
    data = rank_data(attributed)
    del attributed
    cut = time.process_time()
    measure_rank(data)
    measured = time.process_time()
    overlap_of_capture([*(step.spans for step in data.steps), data.outside])
    return {
        "events": events,
        "load_s": loaded - begin,
        "units_s": cut - loaded,
        "measures_s": measured - cut,
        "overlap_s": time.process_time() - measured,
    }


def load_s(how: str, path: Path) -> tuple[float, int]:
    """Processor seconds that a worker spends on a rank's columns, and its events."""
    begin = time.process_time()
    events = read(path, how, path).health.events
    return time.process_time() - begin, events


def figures_of_ranks(folder: Path, how: str) -> Figures:
    """Load all ranks of a folder, in processes as `analyze` has them."""
    paths = sorted(folder.iterdir())
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("forkserver")) as pool:
        found = list(pool.map(partial(load_s, how), paths))
    return {
        "events": sum(events for _, events in found),
        "load_s": sum(seconds for seconds, _ in found),
    }


if __name__ == "__main__":
    given = Path(sys.argv[1])
    print(  # noqa: T201
        json.dumps(
            figures_of_ranks(given, sys.argv[2])
            if given.is_dir()
            else figures(given, sys.argv[2], Path(sys.argv[3]))
        )
    )
