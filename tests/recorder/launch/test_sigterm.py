"""SIGTERM is watched, and given back to whoever asks for it."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fsdpdoctor.recorder.launch import sigterm
from fsdpdoctor.recorder.launch.sigterm import SigtermHandler

DEFAULT = signal.SIG_DFL


@pytest.fixture
def said() -> list[str]:
    """What the record was told."""
    return []


@pytest.fixture
def watch(said: list[str]) -> Iterator[SigtermHandler]:
    """A handler that is taken back, whatever became of it."""
    assert signal.getsignal(signal.SIGTERM) is DEFAULT
    watch = SigtermHandler(said.append)
    yield watch
    watch.stop()
    assert signal.getsignal(signal.SIGTERM) is DEFAULT
    assert signal.set_wakeup_fd(-1) == -1


@pytest.fixture
def theirs() -> Iterator[int]:
    """A wake-up descriptor of an event loop."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    yield write
    os.close(read)
    os.close(write)


def watched() -> bool:
    """Whether SIGTERM is ours."""
    handler = sigterm._getsignal(signal.SIGTERM)
    return isinstance(getattr(handler, "__self__", None), SigtermHandler)


def test_a_signal_that_the_script_has_heard_ends_nothing(
    watch: SigtermHandler, said: list[str]
) -> None:
    """Its handler is gone again before our thread hears of the signal."""
    assert watch.start()
    heard = []
    for _ in range(20):
        signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
        os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGTERM, DEFAULT)
    time.sleep(0.2)
    assert (heard, said, watched()) == ([signal.SIGTERM] * 20, [], True)


def test_a_script_meets_the_default_action(watch: SigtermHandler) -> None:
    """Many a script sets a handler only where there is none, and puts the one that it
    found back later: then we are there as well.
    """
    functions = signal.getsignal, signal.signal
    assert watch.start()

    def mine(number: int, frame: object) -> None: ...

    assert signal.getsignal(signal.SIGTERM) is DEFAULT
    assert signal.signal(signal.SIGTERM, mine) is DEFAULT
    assert signal.getsignal(signal.SIGTERM) is mine
    assert not watched()
    assert signal.signal(signal.SIGTERM, DEFAULT) is mine
    assert (signal.getsignal(signal.SIGTERM), watched()) == (DEFAULT, True)
    assert signal.signal(signal.SIGTERM, signal.SIG_IGN) is DEFAULT
    assert not watched()
    watch.stop()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    assert signal.signal(signal.SIGTERM, DEFAULT) is signal.SIG_IGN
    assert (signal.getsignal, signal.signal) == functions


def test_its_descriptor_has_a_number_that_nobody_is_given(
    watch: SigtermHandler,
) -> None:
    """A script that closes all, and opens files of its own, is signalled before our
    thread has heard of it: the signal's number went into one of them.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert watch.start()
    number = watch._write
    assert number >= min(900, limit * 3 // 4)
    os.close(number)
    mine = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    assert number not in mine
    for one in mine:
        os.close(one)


def test_an_event_loop_has_it_for_as_long_as_it_wants(
    watch: SigtermHandler, theirs: int
) -> None:
    """It is told that nobody had the descriptor; after it we watch again."""
    assert watch.start()
    assert watched()
    assert signal.set_wakeup_fd(theirs, warn_on_full_buffer=False) == -1
    assert not watched()
    assert signal.set_wakeup_fd(-1) == theirs
    assert watched()
    assert signal.set_wakeup_fd(-1) == -1
    assert watched()


def test_a_wrong_call_is_the_scripts_own_error(watch: SigtermHandler) -> None:
    """It is raised as ever, and we watch on."""
    assert watch.start()
    wrong: Any = "no descriptor"
    with pytest.raises(TypeError):
        signal.set_wakeup_fd(wrong)
    assert watched()
    raised: list[BaseException] = []

    def elsewhere() -> None:
        try:
            signal.set_wakeup_fd(-1)
        except ValueError as error:
            raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])
    assert watched()


def test_who_has_a_handler_or_a_descriptor_keeps_it(
    watch: SigtermHandler, theirs: int
) -> None:
    """Then nobody watches."""
    mine: Any = lambda *_: None  # noqa: E731
    signal.signal(signal.SIGTERM, mine)
    try:
        assert not watch.start()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, DEFAULT)
    signal.set_wakeup_fd(theirs)
    try:
        assert not watch.start()
    finally:
        assert signal.set_wakeup_fd(-1) == theirs
    assert signal.getsignal(signal.SIGTERM) is DEFAULT


def test_without_descriptors_nobody_watches(
    watch: SigtermHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that has opened all it may."""

    def none_left() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pipe", none_left)
    assert not watch.start()


def test_a_forked_child_does_not_watch(watch: SigtermHandler) -> None:
    """It has no thread for it."""
    assert watch.start()
    watch.forked()
    assert not watched()
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_that_comes_while_a_line_is_noted_waits_for_it(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ends the process once the line is written; else the handler does."""
    busy = True
    watch = SigtermHandler(said.append, lambda: busy)
    ended: list[bool] = []
    monkeypatch.setattr(watch, "_end", lambda: ended.append(True))
    try:
        assert watch.start()
        watch._handler(signal.SIGTERM, None)
        assert ended == []
        busy = False
        watch._handler(signal.SIGTERM, None)
        assert ended == [True]
    finally:
        watch.stop()
    watch._handler(signal.SIGTERM, None)  # called by a script's own
    assert ended == [True]


def test_a_thread_that_begins_late_takes_nothing_back(
    watch: SigtermHandler, theirs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine an event loop may be over before the first one has begun."""
    late: list[tuple[Any, ...]] = []
    with monkeypatch.context() as patch:
        patch.setattr(sigterm, "start_thread", lambda *call: late.append(call))
        assert watch.start()
    signal.set_wakeup_fd(theirs)
    signal.set_wakeup_fd(-1)
    assert watched()
    ((run, *given),) = late
    run(*given)
    assert watch._write >= 0
    assert watched()
