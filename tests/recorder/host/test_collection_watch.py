"""Collections are timed, and take nothing from the script."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpdoctor.recorder.host.collection_watch import MIN_GC_NS, CollectionWatch
from fsdpdoctor.recorder.patching import ErrorBorder
from fsdpdoctor.recorder.storage.clocks import HostClock
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.run_writer import Heartbeat
from fsdpdoctor.schema import Kind

MANY = 200_000
"""Lists to be looked through, for which a collection takes milliseconds."""


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """One that is on, and of which no error is expected."""

    def stop(reason: str) -> None:
        raise AssertionError(reason)

    recording = Recording(HostClock(), ErrorBorder(stop), Heartbeat(tmp_path, 0))
    recording.on = True
    return recording


@pytest.fixture
def watch(recording: Recording) -> Iterator[CollectionWatch]:
    """On, and alone: a callback of somebody else's, as of Hypothesis, loses errors. At
    the end nothing of it is left.
    """
    before = [*gc.callbacks]
    gc.callbacks.clear()
    watch = CollectionWatch(recording)
    watch.turn(True)
    yield watch
    watch.turn(False)
    left = [*gc.callbacks]
    gc.callbacks[:] = before
    assert left == []


class Alarm(Exception):
    """What a handler of the script raises, with something to tell."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


def test_long_collections_are_spans_with_their_generation(
    recording: Recording, watch: CollectionWatch
) -> None:
    """A short one, of what is young, is none."""
    held = [[i] for i in range(MANY)]
    gc.collect(2)
    gc.collect(0)
    more = [[i] for i in range(MANY)]
    rows = recording.spans.detach(len(recording.spans), {})
    assert len(held) == len(more)
    assert {*rows["kind"].tolist()} == {int(Kind.GC)}
    assert 2 in rows["value"].tolist()
    assert (rows["end_ns"] - rows["start_ns"] >= MIN_GC_NS).all()
    recording.on = False
    gc.collect(2)
    assert len(recording.spans) == 0


@pytest.mark.usefixtures("watch")
def test_what_a_signal_handler_raises_reaches_the_script() -> None:
    """Each, where the collection was, as itself: the collector would lose it."""

    def ring(*_: object) -> None:
        raise Alarm("ring")

    held = [[i] for i in range(MANY)]
    before = signal.signal(signal.SIGALRM, ring)
    found = []
    try:
        for _ in range(20):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                gc.collect()
            except Alarm as alarm:
                found.append(alarm)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert [alarm.word for alarm in found] == ["ring"] * 20
    assert {type(alarm) for alarm in found} == {Alarm}
    lines = [alarm.__traceback__ for alarm in found]
    assert {line.tb_frame.f_code.co_filename for line in lines if line} == {__file__}
    assert len(held) == MANY


@pytest.mark.usefixtures("watch")
def test_a_ctrl_c_ends_a_collecting_script() -> None:
    """Python's own handler's exception is one of these."""
    held = [[i] for i in range(MANY)]
    timer = threading.Timer(0.05, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        _collect_long()
    timer.join()
    assert len(held) == MANY


def test_it_goes_on_after_that(recording: Recording, watch: CollectionWatch) -> None:
    """The next collection is timed again, and a copy of the list is no trouble."""
    with pytest.raises(ZeroDivisionError):
        _raised_in_a_collection()
    copy = [*gc.callbacks]
    gc.callbacks[:] = [*copy, *copy]
    watch.turn(False)
    watch.turn(True)
    recording.spans.drop(len(recording.spans))
    held = [[i] for i in range(MANY)]
    gc.collect()

    assert len(held) == MANY
    assert len(recording.spans) >= 1


def _collect_long() -> None:
    for _ in range(200):
        gc.collect()


def _raised_in_a_collection() -> None:
    def ring(*_: object) -> None:
        raise ZeroDivisionError

    held = [[i] for i in range(MANY)]
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        for _ in range(50):
            gc.collect()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert held
