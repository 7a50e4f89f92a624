"""Collections are timed, and take nothing from the script."""

from __future__ import annotations

import _thread
import functools
import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager
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
@pytest.mark.parametrize("phase", ["start", "stop"])
def test_what_a_signal_handler_raises_reaches_the_script(phase: str) -> None:
    """Each, where the collection was, as itself: the collector would lose it."""
    found = []
    with _ringing(phase, signal.SIGALRM, Alarm("ring")):
        for _ in range(20):
            try:
                gc.collect()
            except Alarm as alarm:
                found.append(alarm)

    assert [alarm.word for alarm in found] == ["ring"] * 20
    assert {type(alarm) for alarm in found} == {Alarm}
    lines = [alarm.__traceback__ for alarm in found]
    assert {line.tb_frame.f_code.co_filename for line in lines if line} == {__file__}


@pytest.mark.usefixtures("watch")
def test_a_ctrl_c_ends_a_collecting_script() -> None:
    """Python's own handler's exception is one of these."""
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), _ringing("start", signal.SIGINT, error):
        gc.collect()


class Underivable(type):
    """A kind of class of which no other can be made."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], held: dict[str, object]
    ) -> Underivable:
        """Raises TypeError for all but the first."""
        if any(isinstance(base, cls) for base in bases):
            raise TypeError(name)
        return super().__new__(cls, name, bases, held)


class Last(Exception, metaclass=Underivable):
    """An error whose class is not to be derived from."""


@pytest.mark.usefixtures("watch")
def test_an_error_of_a_closed_class_is_one_of_that_class() -> None:
    """The interpreter makes it anew: its kind is kept, if not the object."""
    with pytest.raises(Last), _ringing("stop", signal.SIGALRM, Last()):
        gc.collect()


def test_it_goes_on_after_that(recording: Recording, watch: CollectionWatch) -> None:
    """The next collection is timed again, and a copy of the list is no trouble."""
    error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError), _ringing("start", signal.SIGALRM, error):
        gc.collect()
    copy = [*gc.callbacks]
    gc.callbacks[:] = [*copy, *copy]
    watch.turn(False)
    watch.turn(True)
    recording.spans.drop(len(recording.spans))
    held = [[i] for i in range(MANY)]
    gc.collect()

    assert len(held) == MANY
    assert len(recording.spans) >= 1


def test_an_error_of_ours_waits(
    recording: Recording, watch: CollectionWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Till a step ends: amid other code of ours nothing can be taken down. It is said
    once, and nothing is timed any more.
    """

    def fails() -> list[int]:
        raise KeyError("ours")

    module = "fsdpdoctor.recorder.host.collection_watch._collections"
    monkeypatch.setattr(module, fails)
    watch.check()
    for _ in range(2):
        gc.collect()

    assert not recording.guard.failed
    with pytest.raises(KeyError, match="ours"):
        watch.check()
    assert len(recording.spans) == 0


@contextmanager
def _ringing(
    phase: str, number: signal.Signals, error: BaseException
) -> Iterator[None]:
    """Have a signal's handler raise an error in a phase of each collection, just before
    the callbacks that are there: by a callback without a line of Python's, in which the
    handler would run.
    """

    def raise_it(*_: object) -> None:
        raise error

    other = {"start": "stop", "stop": "start"}[phase]
    interrupt = property(_thread.interrupt_main)
    bell = type("Bell", (int,), {phase: interrupt, other: None})
    callback = functools.partial(getattr, bell(number))
    before = signal.signal(number, raise_it)
    gc.callbacks.insert(0, callback)
    try:
        yield
    finally:
        gc.callbacks.remove(callback)
        signal.signal(number, before)
