"""How ranks are started, and what a script that goes wrong is told: in this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fsdpdoctor.errors import UsageError
from fsdpdoctor.recorder.launch import run_script
from fsdpdoctor.recorder.launch.run_script import Target


def test_torchrun_takes_this_process_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its options, then ours, then the script's own words as they are."""
    became: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda path, words: became.append((path, words)))
    script = Target(name="train.py", is_module=False, args=("--lr", "1"))
    module = Target(name="pkg.train", is_module=True, args=())
    run_script.torchrun(["--nnodes=2"], script, ["--every", "1"])
    run_script.torchrun([], module, [])

    start = [sys.executable, "-m", "torch.distributed.run"]
    ours = ["-m", "fsdpdoctor", "run"]
    assert became == [
        (
            sys.executable,
            [*start, "--nnodes=2", *ours, "--every", "1", "train.py", "--lr", "1"],
        ),
        (sys.executable, [*start, *ours, "-m", "pkg.train"]),
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_package.train", "cannot run -m no_such_package.train: No module"),
        ("sys", "cannot run sys: it is no Python module with a file"),
    ],
)
def test_what_is_no_module_of_python_is_said(name: str, said: str) -> None:
    """Before anything runs, and the search path is as it was."""
    before = list(sys.path)
    with pytest.raises(UsageError) as raised:
        run_script.load(Target(name=name, is_module=True, args=()))
    assert str(raised.value).startswith(said)
    assert sys.path == before


def test_a_relative_script_in_a_directory_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is none, and one line says so."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match=r"cannot run train\.py: No such file"):
        run_script.load(Target(name="train.py", is_module=False, args=()))


@pytest.fixture
def error(monkeypatch: pytest.MonkeyPatch) -> BaseException:
    """What a script ended with; what `sys` remembers of it is taken back."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        monkeypatch.setattr(sys, name, None, raising=False)
    try:
        raise ValueError("broken")
    except ValueError as caught:
        return caught


def test_a_scripts_own_hook_is_told(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python tells it; a hook that exits decides how the process ends."""
    told: list[object] = []
    monkeypatch.setattr(sys, "excepthook", lambda *what: told.append(what))
    run_script.report_exception(error)
    assert told == [(ValueError, error, None)]
    assert sys.last_value is error

    def leave(*_: object) -> None:
        raise SystemExit(7)

    monkeypatch.setattr(sys, "excepthook", leave)
    with pytest.raises(SystemExit) as ended:
        run_script.report_exception(error)
    assert ended.value.code == 7


def test_a_hook_that_fails_or_is_missing_hides_nothing(
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Python's words for it, then the script's error; one that is gone likewise."""

    def fails(*_: object) -> None:
        raise RuntimeError("no disk")

    monkeypatch.setattr(sys, "excepthook", fails)
    run_script.report_exception(error)
    said = [line for line in capsys.readouterr().err.splitlines() if line[:1] != " "]
    assert said == [
        "Error in sys.excepthook:",
        "Traceback (most recent call last):",
        "RuntimeError: no disk",
        "",
        "Original exception was:",
        "ValueError: broken",
    ]
    monkeypatch.delattr(sys, "excepthook")
    run_script.report_exception(error)
    assert capsys.readouterr().err == "sys.excepthook is missing\nValueError: broken\n"
    monkeypatch.setattr(sys, "stderr", None)
    run_script._to_stderr("nobody listens")


class Equal(Exception):
    """Of a script that compares what it does not know."""

    __hash__ = Exception.__hash__

    def __eq__(self, other: object) -> bool:
        raise TypeError("compared")


def test_errors_are_told_apart_by_what_they_are(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is asked of errors whose causes lead back to them."""
    last, cause = Equal("the last"), Equal("the first")
    last.__cause__, cause.__context__ = cause, last

    run_script.report_exception(last)

    said = capsys.readouterr().err
    assert said.index("the first") < said.index("the last")
    assert "compared" not in said
