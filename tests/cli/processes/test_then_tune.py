"""After a training that has come to its end, `tune` takes its place."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from fsdpdoctor.cli.processes.then_tune import train_then_tune
from fsdpdoctor.recorder.launch.run_script import Target

TARGET = Target(name="train.py", is_module=False, args=("--lr", "1"))


def test_tune_takes_the_place_of_a_training_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is given the same job, and leaves out what the job has tried itself."""
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, words: became.append(words))

    train_then_tune([sys.executable, "-c", ""], "8", TARGET)

    ours = [sys.executable, "-m", "fsdpdoctor", "tune", "--restart-only"]
    assert became == [[*ours, "--nproc-per-node", "8", "train.py", "--lr", "1"]]


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)],
)
def test_a_training_that_failed_is_not_tuned(code: str, status: int) -> None:
    """Its status is this process's."""
    with pytest.raises(SystemExit) as ended:
        train_then_tune([sys.executable, "-c", code], "8", TARGET)
    assert ended.value.code == status


QUIET = (
    "import signal, sys, time; "
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(60)"
)


def test_a_signal_is_the_trainings() -> None:
    """A script that ends well on it is not tuned all the same."""

    def end() -> None:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=end).start()
    with pytest.raises(SystemExit) as ended:
        train_then_tune([sys.executable, "-c", QUIET], "8", TARGET)
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
