"""HolisticTraceAnalysis on the same rows, in an environment of its own.

Optional: `pip install HolisticTraceAnalysis==0.5.0 'pandas<3'` into a venv, and its
python's path in FSDPDOCTOR_HTA_PYTHON. HTA's rounding of times is turned off
(HTA_DISABLE_NS_ROUNDING=1), and the last step kept, which it leaves out by default:
then its interval sums and ours are of the same rows.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fsdpdoctor.analysis.timeline import of_kinds
from fsdpdoctor.cli import main
from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from fsdpdoctor.importers import import_run
from fsdpdoctor.intervals import intersect, total_ns, union
from fsdpdoctor.quantities import US
from fsdpdoctor.schema import COMMUNICATION_LANES, DEVICE_WORK, Kind, Spans
from tests.importers.drawn_trace import DrawnTrace, collective, rank_metadata
from tests.importers.generated import generated_rank
from tests.importers.real_traces import everything, figures, real

VARIABLE = "FSDPDOCTOR_HTA_PYTHON"

SCRIPT = """
import json, sys
from hta.analyzers import communication_analysis
from hta.trace_analysis import TraceAnalysis
communication_analysis.round = lambda value, digits: value  # its shares, unrounded
analysis = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True)
overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
parts = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
print(json.dumps({
    str(rank): {
        "overlap_percent": float(overlap["comp_comm_overlap_pctg"][rank]),
        "compute_us": float(parts["compute_time(us)"][rank]),
        "idle_us": float(parts["idle_time(us)"][rank]),
        "total_us": float(parts["kernel_time(us)"][rank]),
    }
    for rank in parts.index
}))
"""

Figures = dict[str, dict[str, float]]
"""By rank, by name."""


def by_hta(folder: Path) -> Figures:
    """What HTA says of a folder; skips where HTA is not installed."""
    python = os.environ.get(VARIABLE)
    if python is None:
        pytest.skip(f"{VARIABLE} names no python that has HolisticTraceAnalysis 0.5.0")
    done = subprocess.run(
        [python, "-c", SCRIPT, str(folder)],
        env=os.environ | {"HTA_DISABLE_NS_ROUNDING": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def by_us(folder: Path) -> Figures:
    """The same from our spans. HTA's kernels are all that ran on a stream."""
    return {
        str(data.rank): figures_of(everything(data))
        for data in import_run([folder]).load()
    }


def figures_of(spans: Spans) -> dict[str, float]:
    """One rank's figures."""
    copies = of_kinds(spans, Kind.MEMCPY, Kind.MEMSET)
    kernels = of_kinds(spans, *DEVICE_WORK)
    collectives = spans.rows(np.isin(spans.lane, COMMUNICATION_LANES))
    comm = union(collectives.start_ns, collectives.end_ns)
    compute = union(kernels.start_ns, kernels.end_ns)
    parts = (comm, compute, union(copies.start_ns, copies.end_ns))
    edges = np.concatenate(parts)
    busy_ns = total_ns(union(edges[:, 0], edges[:, 1]))
    whole_ns = int(edges.max() - edges.min())
    return {
        "overlap_percent": 100 * total_ns(intersect(comm, compute)) / total_ns(comm),
        "compute_us": total_ns(compute) / US,
        "idle_us": (whole_ns - busy_ns) / US,
        "total_us": whole_ns / US,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dlrm_8ranks", "pg_args_a100", "exposed_216k"])
def test_real_traces(tmp_path: Path, name: str) -> None:
    """Compute, idle and whole time to the microsecond; overlap to as much of it."""
    for path in real(name).glob("*.json.gz"):
        shutil.copy(path, tmp_path)

    assert_equal(tmp_path)


@pytest.mark.slow
def test_a_generated_trace(tmp_path: Path) -> None:
    """FSDP2's streams: what copies in is compute to both."""
    options = TraceOptions(made_from="a test", flows=True, operators=1)
    write_trace(generated_rank(steps=3), tmp_path / "rank0.json.gz", options)

    assert_equal(tmp_path)


@pytest.mark.slow
def test_an_exported_run(tmp_path: Path) -> None:
    """`export --to hta` of a recorded run opens in HTA, and holds what ours reads."""
    run = Path(__file__).parents[2] / "traces" / "device-slow-wire"
    command = ["export", str(run), "--to", "hta", "--out", str(tmp_path / "hta")]
    CliRunner().invoke(main, command, catch_exceptions=False, standalone_mode=False)

    assert_equal(tmp_path / "hta")


def assert_equal(folder: Path) -> None:
    """Whatever HTA prints is ours, to a microsecond."""
    theirs, ours = by_hta(folder), by_us(folder)

    assert sorted(theirs) == sorted(ours)
    for rank, mine in ours.items():
        whole = mine["total_us"]
        for name, value in mine.items():
            allowed = 100 / whole if name == "overlap_percent" else 1.0
            assert theirs[rank][name] == pytest.approx(value, abs=allowed), (rank, name)


def short_kernels(trace: DrawnTrace) -> None:
    """50 kernels of 1.7 us: rounding each to whole microseconds hides them all."""
    for i in range(50):
        trace.device("gemm", 10 + 2 * i + 0.2, 10 + 2 * i + 1.9, launched=5)


def stream_wait(trace: DrawnTrace) -> None:
    """A wait of a stream for an event, which carries a stream and is no work."""
    trace.device("Stream Wait Event", 10, 110, cat="cuda_sync", stream=7)


def sync_in_a_name(trace: DrawnTrace) -> None:
    """A compute kernel whose name has the word Sync in it."""
    trace.device("SyncBatchNormForward", 10, 110, launched=5)


@pytest.mark.parametrize(
    ("draw", "percent"),
    [(short_kernels, 85.0), (stream_wait, 0.0), (sync_in_a_name, 100.0)],
)
def test_where_hta_is_wrong(
    tmp_path: Path, draw: Callable[[DrawnTrace], None], percent: float
) -> None:
    """HTA 0.5.0 gives 0, 100 and 0 %: it rounds times, takes every row with a stream
    for a kernel, and goes by words in names.
    """
    trace = DrawnTrace(metadata=rank_metadata(0, 4))
    trace.host("ProfilerStep#0", 0, 200)
    args = collective("_allgather_base", 4, 16)
    trace.device("ncclDevKernel_AllGather", 10, 110, launched=4, stream=9, args=args)
    draw(trace)
    trace.write(tmp_path / "rank0.json")
    (data,) = import_run([tmp_path]).load()

    assert figures(everything(data)).overlap_percent == percent
