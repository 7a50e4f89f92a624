"""What is said at the end, where the script has left little to say it with."""

from __future__ import annotations

import os
import resource
import signal
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fsdpdoctor.recorder.launch import closing_words
from fsdpdoctor.recorder.launch.closing_words import Surroundings, report

RUNNING = '{"ended": "running"}'


@pytest.fixture
def no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory that is there no more."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    yield gone
    monkeypatch.undo()


def test_a_directory_that_is_gone_is_the_root(no_directory: Path) -> None:
    """A report starts somewhere, and folders are told whole."""
    assert Surroundings.now().working_directory == "/"
    assert closing_words.short(Path("/runs/a")) == "/runs/a"


def test_a_folder_is_told_as_one_would_type_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the working directory, or whole."""
    monkeypatch.chdir(tmp_path)
    assert closing_words.short(tmp_path / "runs/a") == "runs/a"
    assert closing_words.short(Path("/elsewhere")) == "/elsewhere"


@pytest.mark.parametrize(
    ("trained", "seconds", "told"),
    [(False, 1.5, True), (False, 0.5, False), (True, 90.0, False)],
)
def test_children_that_trained_unseen_are_said(
    trained: bool,
    seconds: float,
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By their processors' time, where this process has trained nothing."""
    used = SimpleNamespace(ru_utime=seconds, ru_stime=0.0)
    monkeypatch.setattr(resource, "getrusage", lambda who: used)
    warned: list[str] = []
    session: Any = SimpleNamespace(trained=trained, warn=warned.append)
    closing_words.say_unseen_children(session)
    said = capsys.readouterr().err
    assert bool(warned) is told
    assert ("start ranks with torchrun or --nproc-per-node" in said) is told


def test_an_empty_folder_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No report is tried."""
    report(tmp_path, Surroundings.now())
    assert capsys.readouterr().err == f"fsdpdoctor: nothing is recorded in {tmp_path}\n"


def test_a_reports_end_is_no_news_to_the_scripts_handler() -> None:
    """Its own stands again after it; another thread than the main one changes none."""
    theirs: Any = lambda *_: None  # noqa: E731
    before = signal.signal(signal.SIGCHLD, theirs)
    try:
        with closing_words._children_unheard():
            assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGCHLD) is theirs
        seen: list[object] = []

        def elsewhere() -> None:
            with closing_words._children_unheard():
                seen.append(signal.getsignal(signal.SIGCHLD))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert seen == [theirs]
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_report_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """In colours there; anywhere else it is plain."""
    controller, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (40, 123))
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert closing_words._terminal() == {"FORCE_COLOR": "1", "COLUMNS": "123"}
    os.close(controller)
    assert closing_words._terminal() == {}  # closed
    monkeypatch.setattr(sys, "stderr", None)
    assert closing_words._terminal() == {}
    with Path(os.devnull).open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert closing_words._terminal() == {}


def test_the_other_ranks_of_the_node_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until each has written its end; not forever, where one never does."""
    paths = [tmp_path / f"rank0000{rank}.json" for rank in range(2)]
    paths[0].write_text('{"ended": "done"}')
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            paths[1].write_text(RUNNING)
        if len(looks) == 3:
            paths[1].write_text('{"ended": "done"}')

    monkeypatch.setattr(time, "sleep", sleep)
    closing_words._wait_for_others(tmp_path, 2)
    assert len(looks) == 3

    looks[:] = [0.0] * 3
    paths[1].write_text(RUNNING)
    closing_words._wait_for_others(tmp_path, 2)
    assert sum(looks) == pytest.approx(closing_words.OTHERS_WAIT_S)

    looks[:] = [0.0] * 3  # the others may wait for this process to be gone
    paths[0].write_text('{"ended": "signal: SIGINT"}')
    closing_words._wait_for_others(tmp_path, 2)
    assert sum(looks) == pytest.approx(closing_words.AFTER_FAULT_S)
