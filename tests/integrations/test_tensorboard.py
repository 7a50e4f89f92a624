"""A run in TensorBoard, read back by TensorBoard's own reader where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.integrations.tensorboard import write_events
from fsdpdoctor.renderers.markdown import render
from tests.integrations.drawn import STEPS, measured_run, save


def test_each_rank_is_a_run(tmp_path: Path) -> None:
    """A folder for each, and one for the report."""
    written = list(write_events(*measured_run(), tmp_path))

    assert [path.parent.name for path in written] == ["report", "rank0", "rank1"]
    assert all("tfevents" in path.name for path in written)


@pytest.mark.filterwarnings("ignore")  # TensorBoard's own
def test_tensorboard_reads_the_figures(tmp_path: Path) -> None:
    """Every step's, exactly, and both texts."""
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="reads back with the package tensorboard",
    )
    measures, report = measured_run()
    list(write_events(measures, report, tmp_path))

    def events(name: str) -> Any:
        found = reader.EventAccumulator(str(tmp_path / name))
        found.Reload()
        return found

    for rank in ("rank0", "rank1"):
        read = events(rank)
        for tag, value in (("step_ms", 16.0), ("exposed_by_cause/wire_ms", 8.0)):
            points = read.Scalars(f"fsdpdoctor/{tag}")
            assert [(p.step, p.value) for p in points] == [(s, value) for s in STEPS]
    texts = events("report")
    (said,) = texts.Tensors("fsdpdoctor/report")
    (units,) = texts.Tensors("fsdpdoctor/units")
    assert said.tensor_proto.string_val[0].decode() == render(report)
    assert "| layers.0 |" in units.tensor_proto.string_val[0].decode()
    names = read.summary_metadata.keys() | texts.summary_metadata.keys()
    assert {"fsdpdoctor/report", "fsdpdoctor/units"} <= names


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the plugin's own
def test_the_profiler_plugin_finds_the_traces(tmp_path: Path) -> None:
    """Beside the charts: a worker for each rank, and all of them together."""
    loader = pytest.importorskip(
        "torch_tb_profiler.profiler.loader",
        reason="reads with the package torch-tb-profiler",
    )
    from torch_tb_profiler.io.cache import Cache

    run, logs = save(tmp_path / "run"), tmp_path / "logs"
    asked = ["export", str(run), str(logs), "--to", "tensorboard"]
    assert CliRunner().invoke(main, asked).exit_code == 0
    with Cache() as cache:
        profiles = loader.RunLoader("run", str(logs), cache).load().profiles

    found = {one.worker: type(one).__name__ for one in profiles.values()}
    assert found == {
        "rank0": "RunProfile",
        "rank1": "RunProfile",
        "All": "DistributedRunProfile",
    }
