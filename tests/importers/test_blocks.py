"""Large traces are worked on in blocks, from files: results are those of one piece."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fsdpdoctor.analysis.rank_measures import RankMeasures, measure_rank
from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from fsdpdoctor.importers import ImportOptions, import_run
from fsdpdoctor.quantities import MIB
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Table
from tests.importers.generated import generated_rank
from tests.importers.real_traces import real


def read(path: Path, cache: Path | None = None) -> tuple[RankData, RankMeasures]:
    """One rank's trace, attributed and measured."""
    (data,) = import_run([path], ImportOptions(cache_folder=cache)).load()
    return data, measure_rank(data)


def assert_same(one: Table, other: Table) -> None:
    """Every column of two tables."""
    for name, column in one.items():
        theirs = getattr(other, name)
        assert column.dtype == theirs.dtype
        np.testing.assert_array_equal(column, theirs, err_msg=name)


@pytest.fixture
def generated(tmp_path: Path) -> Path:
    """A trace with operators, flows and labels."""
    path = tmp_path / "rank0.json.gz"
    options = TraceOptions(made_from="a test", flows=True, operators=3)
    write_trace(generated_rank(steps=4, kernels=20), path, options)
    return path


def in_small_blocks(patch: pytest.MonkeyPatch) -> None:
    """As if every trace had millions of events."""
    patch.setattr("fsdpdoctor.storage.spill.BLOCK_ROWS", 97)
    patch.setattr("fsdpdoctor.analysis.overlap.BLOCK_ROWS", 97)
    patch.setattr("fsdpdoctor.storage.spill.HELD_BYTES", 0)


@pytest.mark.parametrize(
    "name", ["generated", "b200_no_steps", "pg_args_a100", "mi300x_ddp"]
)
def test_blocks_change_nothing(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a span, a step, a warning or a measure: first read, and from the cache."""
    if name == "generated":
        path: Path = request.getfixturevalue("generated")
    else:
        path = next(iter(sorted(real(name).rglob("*.json.gz"))))
    cache: Path = request.getfixturevalue("tmp_path") / "cache"
    whole, measured = read(path)

    in_small_blocks(monkeypatch)

    for data, measures in (read(path, cache), read(path, cache)):
        assert data.header == whole.header
        assert data.names == whole.names
        assert_same(data.outside, whole.outside)
        for mine, theirs in zip(data.steps, whole.steps, strict=True):
            assert (mine.step, mine.start_ns, mine.end_ns) == (
                theirs.step,
                theirs.start_ns,
                theirs.end_ns,
            )
            assert_same(mine.spans, theirs.spans)
        assert_same(measures.stalls, measured.stalls)
        assert_same(measures.unit_times, measured.unit_times)
        assert measures.overlap == measured.overlap
        assert measures.header.health == measured.header.health
    assert len(list(cache.iterdir())) == 1


PEAK = """
import resource, sys
from pathlib import Path
from fsdpdoctor.importers.kineto.source import KinetoSource
from fsdpdoctor.quantities import MIB
from fsdpdoctor.analysis.rank_measures import measure_rank
measure_rank(KinetoSource(path=Path(sys.argv[1]), rank=0, world_size=1).load())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def write_kernels(path: Path, kernels: int) -> None:
    """A trace of launches and kernels alone: all of its events are kept."""
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        file.write('{"ph": "X", "cat": "Trace", "name": "PyTorch Profiler", "ts": 0}')
        for i in range(kernels):
            file.write(
                f',\n{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", '
                f'"pid": 1, "tid": 1, "ts": {10 * i}, "dur": 2, '
                f'"args": {{"correlation": {i}}}}},\n'
                f'{{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, '
                f'"ts": {10 * i + 4}, "dur": 8, '
                f'"args": {{"correlation": {i}, "stream": 7, "device": 0}}}}'
            )
        file.write("\n]}\n")


def test_r03_memory_does_not_grow_with_a_trace(tmp_path: Path) -> None:
    """Six times the kernels: columns of 100 MB more, of which a quarter may show up
    as pages of files that were just read.
    """
    peaks = []
    for kernels in (50_000, 300_000):
        write_kernels(tmp_path / "rank0.json", kernels)
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(tmp_path / "rank0.json")],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout) * 1024)

    assert peaks[1] - peaks[0] < 25 * MIB
