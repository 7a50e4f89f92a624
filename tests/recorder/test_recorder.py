"""Recording begins and ends; what cannot be recorded is said, and trains on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsdpdoctor import recorder
from fsdpdoctor.recorder import session
from fsdpdoctor.recorder.recording_config import RecordingConfig
from fsdpdoctor.recorder.storage import run_folder
from fsdpdoctor.recorder.storage.sampling import sampling_of
from fsdpdoctor.run import open_run
from fsdpdoctor.storage.runs_place import RUNS


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process by itself, which is recorded by nobody before and after."""
    for name in ("RANK", "WORLD_SIZE", run_folder.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    assert recorder.current() is None
    yield
    recorder.stop()


def config(folder: Path) -> RecordingConfig:
    """Every step, into a folder."""
    return RecordingConfig(folder=folder, run_id="r", sampling=sampling_of(None, 1))


def ended(folder: Path) -> str:
    """What the record says of the end."""
    return open_run(folder).sources[0].load().header.ended


def test_one_recording_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second is said, and the first goes on; an end without one is none."""
    first = recorder.start(config(tmp_path / "first"))
    assert first is not None
    assert recorder.start(config(tmp_path / "second")) is None
    assert capsys.readouterr().err == (
        "fsdpdoctor: this process is not recorded, training goes on: "
        "it is recorded already\n"
    )
    assert recorder.current() is first
    recorder.stop()
    recorder.stop()
    assert ended(tmp_path / "first") == "done"
    assert not (tmp_path / "second").exists()


def test_a_rank_that_cannot_be_recorded_trains(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It says which rank; what it has begun to write is taken back."""

    def fails(plan: RecordingConfig) -> None:
        (plan.folder / "rank00001.json").write_text("{}")
        raise RuntimeError("no room")

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(session, "Session", fails)
    assert recorder.start(config(tmp_path)) is None
    assert recorder.current() is None
    said = capsys.readouterr().err
    assert said.startswith("fsdpdoctor: rank 1 is not recorded, training goes on: ")
    assert "RuntimeError" in said
    assert "no room" in said
    assert list(tmp_path.iterdir()) == []


def test_another_process_record_of_this_rank_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two that call themselves the same rank: the second one writes nothing."""
    assert recorder.start(config(tmp_path)) is not None
    recorder.stop()
    before = sorted((p.name, p.read_bytes()) for p in tmp_path.iterdir())
    assert recorder.start(config(tmp_path)) is None
    assert "rank 0 has a record in" in capsys.readouterr().err
    assert sorted((p.name, p.read_bytes()) for p in tmp_path.iterdir()) == before


def test_an_end_that_fails_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The script ends as it would."""
    found = recorder.start(config(tmp_path))
    assert found is not None
    real = found.detach

    def fails(*given: Any) -> None:
        real(*given)
        raise OSError("disk gone")

    monkeypatch.setattr(session.Session, "detach", lambda self, *given: fails(*given))
    recorder.stop()
    assert "fsdpdoctor: the record ends early: OSError" in capsys.readouterr().err
    assert recorder.current() is None


def test_what_runs_inside_is_recorded(tmp_path: Path) -> None:
    """`with record(...)`: into its folder, once, with how it ended."""
    with recorder.record(tmp_path / "a", every=1) as folder:
        with recorder.record(tmp_path / "b") as inner:
            assert inner == folder == tmp_path / "a"
        assert recorder.current() is not None
    assert recorder.current() is None
    assert ended(folder) == "done"
    assert not (tmp_path / "b").exists()
    with pytest.raises(KeyError), recorder.record(tmp_path / "c"):
        raise KeyError("x")
    assert ended(tmp_path / "c") == "exception: KeyError: 'x'"


def test_where_nobody_may_write_the_script_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It gets the folder that it named, and one line says why nothing is there."""
    monkeypatch.setenv(run_folder.VARIABLE, "nonsense")
    ran = []
    with recorder.record(tmp_path / "a") as folder:
        ran.append(folder)
        assert recorder.current() is None
    with recorder.record() as folder:
        ran.append(folder)
    assert ran == [tmp_path / "a", RUNS]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all("is none of ours" in line for line in said)


def test_a_step_outside_a_recording_is_none() -> None:
    """A script may call it wherever it is run."""
    recorder.step()
    assert recorder.current() is None


def test_a_generator_that_is_left_has_ended_well(tmp_path: Path) -> None:
    """A loop over it breaks off, and the script goes on."""

    def batches() -> Iterator[int]:
        with recorder.record(tmp_path / "run"):
            yield from range(3)

    for number in batches():
        if number:
            break

    assert recorder.current() is None
    assert ended(tmp_path / "run") == "done"


def test_what_is_no_path_is_no_error_of_the_script_s(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It trains unrecorded, and is told."""
    with recorder.record("a\0b"):
        assert recorder.current() is None

    assert "is not recorded, training goes on: ValueError" in capsys.readouterr().err
