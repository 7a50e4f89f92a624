"""A disk that is slow, hangs or fails holds up nobody; see [Note: Slow disks]."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from fsdpdoctor.recorder.storage import disk_thread
from fsdpdoctor.recorder.storage.disk_thread import DiskThread


def nothing() -> None:
    """No heartbeat."""


def waiting_for(answers: threading.Event) -> Callable[[], None]:
    """A write that ends when the disk answers."""

    def write() -> None:
        answers.wait()

    return write


def started() -> DiskThread:
    """A thread that writes no heartbeat."""
    disk = DiskThread(nothing)
    disk.start()
    return disk


def test_what_is_written_is_there_when_the_call_returns() -> None:
    """On a disk that answers, in order."""
    written: list[int] = []
    disk = started()
    for number in range(50):
        disk.write(lambda number=number: written.append(number))  # type: ignore[misc]
        assert written[-1] == number
    assert disk.finish()
    disk.stop()


def test_a_disk_that_hangs_is_not_waited_for() -> None:
    """The next steps are kept; when it answers they are written, in order."""
    answers, written = threading.Event(), list[int]()
    disk = started()
    disk.write(waiting_for(answers), patience_s=0.01)
    for number in range(10):
        disk.write(lambda number=number: written.append(number))  # type: ignore[misc]
    assert written == []
    assert not disk.finish(patience_s=0.01)

    answers.set()

    assert disk.finish()
    assert written == list(range(10))
    disk.stop()


def test_a_disk_that_stays_behind_ends_the_recording() -> None:
    """Memory does not grow without end."""
    answers = threading.Event()
    disk = started()
    disk.write(waiting_for(answers), patience_s=0.01)
    for _ in range(disk_thread.MOST_WAITING - 1):
        disk.write(nothing)
    with pytest.raises(OSError, match="64 steps behind"):
        disk.write(nothing)
    answers.set()
    assert disk.finish()
    disk.stop()


def test_what_a_write_raises_is_raised_once() -> None:
    """By the call itself, as if it had been made there."""

    def full() -> None:
        raise OSError(28, "No space left on device")

    disk = started()
    with pytest.raises(OSError, match="No space left"):
        disk.write(full)
    disk.write(nothing)
    disk.stop()


def test_what_may_be_later_is_waited_for_at_the_end_alone() -> None:
    """It holds up no step, and comes between those before it and those after."""
    answers, written = threading.Event(), list[int]()
    disk = started()
    disk.later(waiting_for(answers))
    disk.write(lambda: written.append(1))
    assert written == []
    assert not disk.finish(patience_s=0.01)

    answers.set()

    assert disk.finish()
    assert written == [1]
    disk.stop()
    disk.later(lambda: written.append(2))
    assert written == [1, 2]


def test_a_heartbeat_that_fails_is_named_and_not_tried_again() -> None:
    """The record goes on without it."""
    beats: list[int] = []

    def beat() -> None:
        beats.append(1)
        raise OSError("gone")

    disk = DiskThread(beat)
    disk.start()
    for _ in range(3):
        disk.write(nothing)
    assert disk.finish()
    disk.stop()
    disk.write(nothing)
    assert beats == [1]
    assert disk.beat_error == "the heartbeat ends early: gone"
    disk.stop()


def test_a_step_that_is_written_has_its_events_written() -> None:
    """The heartbeat goes first: a killed rank's last event is none of before."""
    order: list[str] = []
    disk = DiskThread(lambda: order.append("beat"))
    disk.start()
    disk.write(lambda: order.append("step"))
    assert order == ["beat", "step"]
    disk.stop()


def test_our_own_thread_is_known() -> None:
    """What is called back on it must not wait for it."""
    seen: list[bool] = []
    disk = started()
    disk.write(lambda: seen.append(disk_thread.on_own_thread()))
    assert (seen, disk_thread.on_own_thread()) == ([True], False)
    disk.stop()


def test_the_thread_is_none_of_the_script_s() -> None:
    """Who counts or joins the threads of `threading` does not meet it."""
    before = threading.enumerate()
    disk = started()
    disk.write(nothing)
    assert threading.enumerate() == before
    disk.stop()
