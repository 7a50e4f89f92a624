"""A rehearsal of its own: what it said, how it ended, and that it ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fsdpdoctor.cli.processes import first_steps
from fsdpdoctor.cli.processes.first_steps import rehearse_first_steps


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for Python, and is told what it would be told."""
    path = tmp_path / "python"
    path.touch(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    return path


def test_its_words_and_its_status_are_kept(program: Path, tmp_path: Path) -> None:
    """Both streams in their order, without empty lines."""
    program.write_text('#!/bin/sh\necho "$@"\necho\necho " no" >&2\nexit 3\n')
    done = rehearse_first_steps(["--on", "h100", "train.py"], tmp_path, 60.0)
    assert done.status == 3
    assert done.said == ("-m fsdpdoctor rehearse --on h100 train.py", "no")


@pytest.mark.parametrize("deaf", [False, True])
def test_one_that_takes_too_long_is_ended(
    deaf: bool, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may close its record; one that does not hear is killed."""
    monkeypatch.setattr(first_steps, "ENDS_WITHIN_S", 0.2 if deaf else 60.0)
    hears = "trap '' TERM" if deaf else "trap 'echo closed; exit 0' TERM"
    program.write_text(f"#!/bin/sh\n{hears}\necho $$\nwhile :; do sleep 0.01; done\n")
    done = rehearse_first_steps(["train.py"], tmp_path, 1.5)
    assert done.status is None
    assert done.said[1:] == (() if deaf else ("closed",))
    assert not Path(f"/proc/{done.said[0]}").exists()
