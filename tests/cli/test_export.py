"""What `export` writes for other tools, and where."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from fsdpdoctor.errors import MissingDependencyError, need
from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from tests.cli.test_cli import fsdpdoctor, one_line
from tests.importers.generated import generated_rank
from tests.integrations.drawn import save


@pytest.mark.parametrize(
    ("tool", "suffix"),
    [
        ("kineto", ".kineto.json.gz"),
        ("tensorboard", ".pt.trace.json.gz"),
        ("hta", ".json.gz"),
    ],
)
def test_an_exported_run_is_read_as_traces(
    tool: str, suffix: str, tmp_path: Path
) -> None:
    """One file per rank, with the same exposed time; never over what is there."""
    (tmp_path / "made").mkdir()
    for rank in (0, 1):
        made = tmp_path / "made" / f"rank{rank}.json"
        write_trace(
            generated_rank(rank=rank, steps=4), made, TraceOptions(made_from="a test")
        )
    run, folder = tmp_path / "run", tmp_path / "traces"
    fsdpdoctor("import", tmp_path / "made", "--out", run)
    export = ("export", run, "--to", tool, "--out", folder)
    said = fsdpdoctor(*export).stderr
    found = json.loads(fsdpdoctor("analyze", folder, "--no-cache", "--json").stdout)
    expected = json.loads(fsdpdoctor("analyze", run, "--json").stdout)

    files = [line for line in said.splitlines() if "tfevents" not in line]
    assert files == [f"wrote {folder}/rank{rank}{suffix}" for rank in (0, 1)]
    assert found["run"]["notes"] == ["synthetic trace: a kineto run"]
    for figures in ("step_time_ns", "exposed_ns_per_step", "overlap_share"):
        assert found[figures] == expected[figures]
    assert found["exposed_ns_per_step"]["total"] > 0
    assert "is not empty" in one_line(fsdpdoctor(*export))


def test_tables_go_where_the_second_argument_says(tmp_path: Path) -> None:
    """A file for each; the folder once, and a package that is not there is said before
    one is made.
    """
    exposed, folder = save(tmp_path / "run"), tmp_path / "tables"
    said = fsdpdoctor("export", "--to", "csv", exposed, folder).stderr
    twice = fsdpdoctor("export", "--to", "csv", exposed, folder, "--out", folder)

    assert said.splitlines()[0] == f"wrote {folder}/steps.csv"
    assert {path.suffix for path in folder.iterdir()} == {".csv"}
    assert one_line(twice).startswith("Error: the folder is given twice")
    if importlib.util.find_spec("pyarrow") is None:
        parquet = ("export", "--to", "parquet", exposed, tmp_path / "other")
        assert one_line(fsdpdoctor(*parquet)) == (
            "Error: pyarrow is not installed: pip install 'fsdpdoctor[parquet]'"
        )
        assert not (tmp_path / "other").exists()


def test_a_package_that_is_not_there_is_named_with_its_extra() -> None:
    """Also where nothing of what it lies in is there."""
    with pytest.raises(MissingDependencyError) as raised:
        need("no_such_package.inner.module", "otlp")

    assert str(raised.value) == (
        "no_such_package.inner.module is not installed: pip install 'fsdpdoctor[otlp]'"
    )
