"""Large traces are worked on in blocks, from files: results are those of one piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from fsdpdoctor.importers import ImportOptions, import_run
from fsdpdoctor.rank_measures import RankMeasures, measure_rank
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
    patch.setattr("fsdpdoctor.shelf.BLOCK_ROWS", 97)
    patch.setattr("fsdpdoctor.overlap.BLOCK_ROWS", 97)
    patch.setattr("fsdpdoctor.shelf.HELD_BYTES", 0)


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
