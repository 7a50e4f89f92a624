"""A command whose output goes to a file, and that ends in time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fsdpdoctor.cli.processes.logged_command import run_logged


def python(code: str) -> list[str]:
    """A command that runs it."""
    return [sys.executable, "-c", code]


def test_its_status_and_its_output_are_kept(tmp_path: Path) -> None:
    """Both streams, in the file; the environment is ours and what is added."""
    log = tmp_path / "log"
    code = "import os,sys; print(os.environ['OF_TEST']); sys.exit('no')"
    status = run_logged(python(code), log, 60, {"OF_TEST": "here"})
    assert status == 1
    assert sorted(log.read_text().split()) == ["here", "no"]


def test_when_the_time_is_up_it_is_ended(tmp_path: Path) -> None:
    """Nothing of it is left running, and there is no status."""
    started: list[subprocess.Popen[bytes]] = []
    code = "import time; time.sleep(600)"
    found = run_logged(python(code), tmp_path / "log", 0.5, started=started.append)
    assert found is None
    (process,) = started
    assert process.poll() == -15
