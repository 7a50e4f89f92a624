"""Paths through fsspec: the same run, from wherever it is read."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fsdpdoctor.cli import main
from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from fsdpdoctor.run import in_memory, save_run
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.storage.remote_path import RemotePath, path_of
from tests.importers.generated import generated_rank

fsspec: Any = pytest.importorskip("fsspec", reason="fsspec is of the extra [cluster]")


def analyze(*args: str | Path) -> Result:
    """Run the command in this process."""
    words = ["analyze", "--no-cache", "--json", *(str(arg) for arg in args)]
    return CliRunner().invoke(main, words)


@pytest.fixture
def memory() -> Iterator[Any]:
    """A file system in memory, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Two ranks' traces."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in (0, 1):
        data = generated_rank(rank=rank, world_size=2, layers=2)
        options = TraceOptions(made_from="a test")
        write_trace(data, folder / f"rank{rank}.json.gz", options)
    return folder


def figures(result: Result) -> dict[str, Any]:
    """The report, without where it came from."""
    assert result.exit_code == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    del report["run"]["run_id"]  # of the paths, where a trace has none
    return report


@pytest.mark.parametrize("given", ["", "/*.json.gz"])
def test_traces(given: str, traces: Path, memory: Any) -> None:
    """A remote folder and a remote pattern give the report of the local folder."""
    memory.put(str(traces), "/bucket/traces", recursive=True)

    assert figures(analyze(f"memory://bucket/traces{given}")) == figures(
        analyze(traces)
    )


def test_a_recorded_run(tmp_path: Path, memory: Any) -> None:
    """A run's folder, and a folder that holds it."""
    header = RunHeader(run_id="a", source="recorded", world_size=2, device="cuda")
    ranks = [generated_rank(rank=rank, world_size=2) for rank in (0, 1)]
    save_run(in_memory(header, ranks), tmp_path / "run")
    memory.put(str(tmp_path / "run"), "/bucket/runs/one", recursive=True)
    local = figures(analyze(tmp_path / "run"))

    assert figures(analyze("memory://bucket/runs/one")) == local
    assert figures(analyze("memory://bucket/runs")) == local


def test_remote_traces_are_imported(traces: Path, tmp_path: Path, memory: Any) -> None:
    """They become a run here, with the figures of the traces."""
    memory.put(str(traces), "/bucket/traces", recursive=True)
    words = ["import", "memory://bucket/traces", "--out", str(tmp_path / "run")]
    kept = CliRunner().invoke(main, words)
    unwritable = CliRunner().invoke(main, [*words[:3], "/proc/none/run"])
    report = figures(analyze(tmp_path / "run"))

    assert kept.stderr == f"wrote {tmp_path / 'run'}\n"
    assert report == figures(analyze(traces))
    assert unwritable.stderr.startswith("Error: cannot write /proc/none/run: ")


def test_file_urls(traces: Path) -> None:
    """They are local paths, and need no package."""
    assert path_of(f"file://{traces}") == traces
    assert figures(analyze(f"file://{traces}")) == figures(analyze(traces))


def test_a_database_must_be_here(memory: Any) -> None:
    """SQLite reads files only, and that is said."""
    memory.pipe("/bucket/rank0.sqlite", b"SQLite format 3\0")

    assert analyze("memory://bucket/rank0.sqlite").stderr == (
        "Error: memory://bucket/rank0.sqlite cannot be read from there: copy it here "
        "first\n"
    )


def test_an_archive_must_be_unpacked() -> None:
    """What is inside one is refused in a line; an address of colons is a host's."""
    inside = "zip://rank0.json::/tmp/traces.zip"

    assert analyze(inside).stderr == (
        f"Error: {inside} is inside an archive: copy and unpack it here first\n"
    )
    assert str(path_of("http://[::1]:80/a.json")) == "http://[::1]:80/a.json"


def test_what_is_not_there(memory: Any) -> None:
    """One line that names it, for a file, a protocol and a package."""
    for url, said in (
        ("memory://bucket/none", "memory://bucket/none does not exist"),
        ("nonsense://bucket/x", "cannot read nonsense://bucket/x"),
    ):
        result = analyze(url)
        assert result.exit_code == 2
        assert said in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_remote_path_is_a_path() -> None:
    """Its text is the URL, its parts are a path's, and it pickles."""
    path = path_of("s3://bucket/a/rank0.json.gz")

    assert isinstance(path, RemotePath)
    assert (str(path), path.name, path.suffix) == (
        "s3://bucket/a/rank0.json.gz",
        "rank0.json.gz",
        ".gz",
    )
    assert str(path.parent / "b") == "s3://bucket/a/b"
    assert str(path.with_suffix(".x")) == "s3://bucket/a/rank0.json.x"
    assert str(path_of("hdfs:///user/me") / "run") == "hdfs:///user/me/run"
    assert pickle.loads(pickle.dumps(path)) == path
