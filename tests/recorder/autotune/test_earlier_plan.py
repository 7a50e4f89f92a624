"""What was kept before a restart is found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdpdoctor.plan_file import read_settings
from fsdpdoctor.recorder.autotune.earlier_plan import PLAN, kept_before, save_kept
from fsdpdoctor.recorder.autotune.ranking import Candidate

KEPT = Candidate(
    summary="async",
    plan={"unshard_async_op": True},
    apply={"units": {"<root>": {}}, "unshard_async_op": True},
    code="",
    step_ns=1,
    bytes=2,
)


def attempt(folder: Path, name: str, world_size: int = 8) -> Path:
    """An earlier one's folder."""
    there = folder / name
    there.mkdir()
    (there / "run.json").write_text(json.dumps({"world_size": world_size}))
    return there


@pytest.mark.parametrize("name", ["run-restart2", "run-restart2-3"])
def test_the_last_plan_that_was_kept_is_found(tmp_path: Path, name: str) -> None:
    """Of the attempt before, or of the one before that."""
    save_kept(attempt(tmp_path, "run"), KEPT)
    attempt(tmp_path, "run-restart1")

    found = kept_before(tmp_path / name, 8)

    assert found is not None
    assert found.apply == KEPT.apply
    assert found.summary == "unshard_async_op True"
    assert read_settings(tmp_path / "run" / PLAN).unshard_async_op is True


def test_a_first_attempt_has_none(tmp_path: Path) -> None:
    """Nor one of another number of ranks, nor where the file is damaged."""
    there = attempt(tmp_path, "run", world_size=4)
    save_kept(there, KEPT)

    assert kept_before(tmp_path / "run", 4) is None
    assert kept_before(tmp_path / "run-restart1", 8) is None
    assert kept_before(tmp_path / "run-restart1", 4) is not None
    (there / PLAN).write_text("{")
    assert kept_before(tmp_path / "run-restart1", 4) is None


def test_torchrun_s_next_attempt_finds_it_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders named for the hour tell nothing; a note of this launcher does, but not to
    the attempt that left it.
    """
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    save_kept(attempt(tmp_path, "train-at-noon"), KEPT)

    assert kept_before(tmp_path / "train-at-one", 8) is None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    found = kept_before(tmp_path / "train-at-one", 8)
    assert found is not None
    assert found.apply == KEPT.apply
