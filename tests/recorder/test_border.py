"""What a signal handler of the script raises amid our code is the script's."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.fsdp2 import process_groups
from fsdpdoctor.recorder.host import collective_operators
from fsdpdoctor.recorder.memory import refusals
from fsdpdoctor.recorder.patching import ErrorBorder
from fsdpdoctor.recorder.storage import memory_samples


class Late(Exception):
    """Of a script that gives its steps so much time."""


def late(number: int, frame: FrameType | None) -> None:
    """Its handler."""
    raise Late


@pytest.fixture(autouse=True)
def handler() -> Any:
    """It is set, and its signal comes where a test has it."""
    before = signal.signal(signal.SIGUSR1, late)
    yield
    signal.signal(signal.SIGUSR1, before)


def rings(*given: Any, **named: Any) -> int:
    """The signal comes here, as long as the handler is there: what is made of this may
    outlive its test.
    """
    if signal.getsignal(signal.SIGUSR1) is late:
        signal.raise_signal(signal.SIGUSR1)
    return 0


class Group:
    """One that a signal comes in."""

    _get_sequence_number_for_group = rings

    def size(self) -> int:
        """Of one rank."""
        return 1


class Rings(type):
    """Whose classes have a hash that a signal comes in."""

    __hash__ = rings


CASES: dict[str, tuple[str | None, Callable[[], object]]] = {
    "tensors alive": (None, lambda: refusals._looked_for([Rings("R", (), {})()])),
    "resident memory": ("os.open", memory_samples.resident_bytes),
    "sequence number": (None, lambda: collective_operators.sequence_number(Group())),
    "a group's ranks": (
        "torch.distributed.get_process_group_ranks",
        lambda: process_groups._spec(Group()),
    ),
}


@pytest.mark.parametrize("raised", [Late, TimeoutError, RuntimeError])
@pytest.mark.parametrize("case", CASES)
def test_it_comes_through(
    case: str, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an error of its kind would be an answer."""
    where, call = CASES[case]
    if where is not None:
        monkeypatch.setattr(where, rings)
    monkeypatch.setitem(globals(), "Late", raised)

    with pytest.raises(raised):
        call()


def test_an_error_of_ours_is_an_answer_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's handler has raised it."""

    def refused(*given: Any) -> int:
        raise PermissionError

    monkeypatch.setattr("os.open", refused)

    assert memory_samples.resident_bytes() == -1
    border.let_through(RuntimeError("ours"))


class StandsIn:
    """Of something that is not there yet, and in whose name it answers."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """It is not called here."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("not there yet")


class Odd(Exception):
    """Asked for what it has not, it raises what is no AttributeError."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("__") else KeyError(name)


@pytest.mark.parametrize("kind", [ValueError, Odd])
def test_a_handler_that_cannot_be_asked_is_nobody_s_end(
    capsys: pytest.CaptureFixture[str], kind: type[Exception]
) -> None:
    """An error of ours ends the recording, as ever, and is not raised in the script."""
    signal.signal(signal.SIGUSR1, StandsIn())
    said: list[str] = []
    guard = ErrorBorder(said.append)

    def fails() -> None:
        raise kind("ours")

    guard.run(fails)

    name = kind.__name__
    assert [one.partition(" in ")[0] for one in said] == [f"detached: {name}"]
    assert f"training goes on: {name} in fails" in capsys.readouterr().err
