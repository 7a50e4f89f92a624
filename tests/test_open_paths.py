"""Paths become a run: what each names, and who reads it."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.cli.processes.trial_runs import TrialRuns
from fsdpdoctor.errors import FsdpDoctorError, InputError, UsageError
from fsdpdoctor.open_paths import (
    JSON_PER_SECOND,
    PACKED_PER_SECOND,
    PROCESS_START_S,
    RECORD_PER_SECOND,
    ReadOptions,
    files_at,
    open_paths,
    processes_that_pay,
    rank_processes,
    rank_workers,
    run_path,
    runs_at,
)
from fsdpdoctor.run import RankData, Run, in_memory, open_run, save_run
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.tune import Measured
from tests.importers.generated import generated_rank

RECORDED = Path(__file__).parent.parent / "traces" / "healthy-prefetch"
HEADER = RunHeader(run_id="a", source="recorded", world_size=2, device="cuda")


def save(folder: Path, *ranks: int, run_id: str = "a") -> Path:
    """A run of those ranks."""
    data = [generated_rank(rank=rank, world_size=2, layers=2) for rank in ranks]
    save_run(in_memory(replace(HEADER, run_id=run_id), data), folder)
    return folder


def test_what_is_a_runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run.json stands for it, `latest` for the newest; all else for itself."""
    monkeypatch.chdir(tmp_path)
    run = save(tmp_path / "run", 0)

    assert run_path(run / "run.json") == run
    assert run_path(Path("latest")) == Path("fsdpdoctor-runs/latest")
    assert run_path(Path("other/run.json")) == Path("other/run.json")
    Path("latest").mkdir()
    assert run_path(Path("latest")) == Path("latest")


def test_folders_of_nodes_are_one_run(tmp_path: Path) -> None:
    """Given each, as text too, or the folder above them, in which a link is no run."""
    nodes = [save(tmp_path / f"node{rank}", rank) for rank in (0, 1)]
    (tmp_path / "latest").symlink_to("node1")

    assert open_paths([str(node) for node in nodes]).ranks == (0, 1)
    assert open_paths([tmp_path]).ranks == (0, 1)
    assert runs_at(tmp_path) == [tmp_path]


def test_a_damaged_run_hides_no_others(tmp_path: Path) -> None:
    """A folder of runs is one, whatever one of them holds; alone it says what it is."""
    runs = [save(tmp_path / name, 0, run_id=name) for name in ("a", "b")]
    for broken in (runs[1], tmp_path / "c"):
        broken.mkdir(exist_ok=True)
        (broken / "run.json").write_text("{")
    assert runs_at(tmp_path) == [*runs, tmp_path / "c"]
    nodes = [save(tmp_path / "job" / f"node{rank}", rank) for rank in (0, 1)]
    (tmp_path / "job" / "node2").mkdir()
    (tmp_path / "job" / "node2" / "run.json").write_text("{")
    assert runs_at(nodes[0].parent) == [nodes[0].parent]
    with pytest.raises(InputError, match="is damaged"):
        open_paths([tmp_path / "c"])
    (said,) = open_paths([runs[1]]).warnings
    assert f"{runs[1] / 'run.json'} is damaged" in said


def test_several_runs_below_a_folder(tmp_path: Path) -> None:
    """Each can be opened, the folder cannot."""
    runs = [save(tmp_path / name, 0, run_id=name) for name in ("a", "b")]
    os.utime(runs[0] / "run.json", (0, 0))

    assert runs_at(tmp_path) == runs
    assert runs_at(runs[0]) == [runs[0]]
    with pytest.raises(InputError, match=f"holds 2 runs; .* example {runs[1]}"):
        open_paths([tmp_path])
    with pytest.raises(InputError, match="none does not exist: expected the folder"):
        runs_at(tmp_path / "none")
    with pytest.raises(UsageError, match="is not a recorded run"):
        open_paths([runs[0], tmp_path])


def test_the_files_of_a_run(tmp_path: Path) -> None:
    """Those of its nodes' folders too, and of nothing that is hidden or deeper."""
    node = save(tmp_path / "node0", 0)
    (tmp_path / "note.txt").touch()
    (tmp_path / ".hidden").touch()
    (node / "kineto").mkdir()
    (node / "kineto" / "trace.json").touch()

    names = {path.relative_to(tmp_path).as_posix() for path in files_at(tmp_path)}
    assert names == {
        "note.txt",
        "node0/run.json",
        "node0/rank00000.json",
        "node0/rank00000.arrows",
    }
    assert files_at(tmp_path / "note.txt") == [tmp_path / "note.txt"]


def test_traces_lie_at_any_depth(tmp_path: Path) -> None:
    """A folder with a folder per rank has the files in them: two are never alike."""
    trace = tmp_path / "node0" / "rank0" / "trace.json"
    trace.parent.mkdir(parents=True)
    trace.touch()

    assert files_at(tmp_path) == [trace]


class Sized:
    """A rank whose file has a size."""

    def __init__(self, rank: int, path: Path, size: int) -> None:
        """Make the file; it takes no room."""
        self.rank, self.where = rank, str(path)
        with path.open("wb") as file:
            file.truncate(size)

    def load(self) -> RankData:
        """Nothing asks for it."""
        raise AssertionError


def sized(folder: Path, suffix: str, seconds: float, rate: int, ranks: int) -> Run:
    """A run whose ranks together take so long to measure."""
    size = int(seconds * rate / ranks) + 1
    sources = [Sized(r, folder / f"rank{r}{suffix}", size) for r in range(ranks)]
    return Run(header=HEADER, sources=tuple(sources))


@pytest.mark.parametrize(
    ("suffix", "rate"),
    [
        (".json", JSON_PER_SECOND),
        (".json.gz", PACKED_PER_SECOND),
        (".arrows", RECORD_PER_SECOND),
    ],
)
def test_a_process_for_each_start_that_it_saves(
    tmp_path: Path, suffix: str, rate: int
) -> None:
    """By the kind of its file; never more than there are cores or ranks."""
    run = sized(tmp_path, suffix, 3.5 * PROCESS_START_S, rate, ranks=8)
    assert processes_that_pay(run, cores=16) == 3
    assert processes_that_pay(run, cores=2) == 2

    little = sized(tmp_path, suffix, 0.9 * PROCESS_START_S, rate, ranks=1)
    assert processes_that_pay(little, cores=16) == 0
    long = sized(tmp_path, suffix, 100 * PROCESS_START_S, rate, ranks=4)
    assert processes_that_pay(long, cores=16) == 4


def test_ranks_in_memory_pay_for_no_process(tmp_path: Path) -> None:
    """They have no file to look at; --jobs starts some all the same, one for each."""
    data = [generated_rank(rank=rank, world_size=2, layers=2) for rank in (0, 1)]
    run = in_memory(HEADER, data)

    assert processes_that_pay(run, cores=16) == 0
    with rank_workers(run, ReadOptions()) as nobody:
        assert nobody is None
    with rank_workers(run, ReadOptions(jobs=1)) as nobody:
        assert nobody is None


@pytest.mark.ranks
def test_a_process_that_dies_is_said_in_one_line() -> None:
    """And what to do about it."""

    def die() -> None:
        with rank_processes(1, hint=": use fewer --jobs") as executor:
            executor.submit(os._exit, 9).result()

    with pytest.raises(FsdpDoctorError, match=r"died, .*memory: use fewer --jobs$"):
        die()


@pytest.fixture
def growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that has two more steps each time after it was opened, six at most."""
    data = generated_rank(rank=0, world_size=2, layers=2, steps=6)
    header = replace(HEADER, world_size=1)
    later = []
    for steps in (4, 6):
        folder = tmp_path / f"after-{steps}"
        save_run(in_memory(header, [replace(data, steps=data.steps[:steps])]), folder)
        later.append((folder / "rank00000.arrows").read_bytes())
    folder = tmp_path / "growing"
    save_run(in_memory(header, [replace(data, steps=data.steps[:2])]), folder)

    def opened(*folders: Path) -> Run:
        run = open_run(*folders)
        if later:
            (folder / "rank00000.arrows").write_bytes(later.pop(0))
        return run

    monkeypatch.setattr("fsdpdoctor.open_paths.open_run", opened)
    return folder


def exported(run: Path, out: Path) -> list[dict[str, Any]]:
    """The events of a run's file for Perfetto."""
    words = ["export", str(run), "--to", "perfetto", "--out", str(out)]
    assert CliRunner().invoke(main, words).exit_code == 0
    content = json.loads(gzip.decompress((out / "perfetto.json.gz").read_bytes()))
    events: list[dict[str, Any]] = content["traceEvents"]
    return events


def test_an_export_is_of_one_moment(growing: Path, tmp_path: Path) -> None:
    """Spans and exposed time of a run in progress are of the same steps."""
    still = tmp_path / "still"
    shutil.copytree(growing, still)

    found = exported(growing, tmp_path / "a")

    assert found == exported(still, tmp_path / "b")


def test_a_trial_run_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is replayed of a run is what was measured of it."""
    copy = "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[3])"
    opened: list[Path] = []

    def counted(*folders: Path) -> Run:
        opened.extend(folders)
        return open_run(*folders)

    monkeypatch.setattr("fsdpdoctor.open_paths.open_run", counted)
    runs = TrialRuns(
        launch=[sys.executable, "-c", copy, str(RECORDED)],
        options=[],
        script=[],
        folder=tmp_path / "runs",
        timeout_s=60,
        say=lambda line: None,
    )

    assert isinstance(runs.run(None), Measured)
    assert opened == [tmp_path / "runs" / "run-00"]


def test_a_job_that_nobody_recorded_is_told_as_such(tmp_path: Path) -> None:
    """Its ranks agreed on a folder, and trained elsewhere."""
    (tmp_path / ".job-917669420ad5af14.json").write_text("{}")

    with pytest.raises(InputError, match=r"holds no rank's record: expected ranks to"):
        open_paths([tmp_path])
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match="no trace found"):
        open_paths([tmp_path])
