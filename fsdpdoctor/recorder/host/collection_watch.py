"""Times the collections of Python's garbage.

[Note: Nothing is lost in a callback] The collector writes off what its callbacks raise.
A signal that comes while it runs, and it may run for a second, is handled in the first
frame of Python that follows: that would be ours, and a Ctrl-C, or what a handler of the
script raises, would be lost. So the collector calls no function of Python's: it asks
for an attribute, which is a property, which goes on with a generator; that is inside
its `try` already when the handler runs. What comes out there is raised again where the
script goes on: by another thread, for which the last callback of the same round waits.

An error of ours waits for the step's end: a collection may run amid other code of ours,
and what that is about to put in place nobody would take away again.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import gc
import threading
from collections.abc import Callable, Generator
from time import perf_counter_ns
from typing import Any

from fsdpdoctor.recorder import border, kinds
from fsdpdoctor.recorder.own_threads import start_thread
from fsdpdoctor.recorder.storage.disk_thread import on_own_thread
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.schema import UNKNOWN

MIN_GC_NS = 100_000
"""A shorter garbage collection is not recorded: the young generation is swept
many times in a step, each for tens of microseconds, which is the interpreter's
ordinary work."""


class CollectionWatch:
    """One recording's view of the collector."""

    def __init__(self, recording: Recording) -> None:
        self._rec = recording
        self._began = 0
        self._times: list[int] = []  # of each generation, when it began
        self._failed: Exception | None = None
        self._door: Any = type("Collector", (), {})
        self._callback = functools.partial(getattr, self._door())
        self._open("start", self._begins)
        self._open("stop", self._ended)

    def check(self) -> None:
        """Raises what went wrong since, at a place where recording can end."""
        if self._failed is not None:
            raise self._failed

    def turn(self, on: bool) -> None:
        """See collections, or see none."""
        # Twice, where a script has put a copy of the list back.
        while self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)
        if on:
            gc.callbacks.append(self._callback)

    def _open(self, phase: str, act: Callable[[], None]) -> None:
        """Have the collector go on with a new generator in a phase."""
        told = self._told(phase, act)
        next(told)
        setattr(self._door, phase, property(told.send))

    def _told(
        self, phase: str, act: Callable[[], None]
    ) -> Generator[None, object, None]:
        try:
            while True:
                yield
                # On while it is off: a script has put back a copy of the list. What is
                # swept on our own thread is our cost, and what it calls must not wait
                # for it.
                if self._rec.on and not on_own_thread() and self._failed is None:
                    self._rec.guard.run(self._do, act)
        except GeneratorExit:
            return
        except BaseException as error:  # a signal handler's
            self._open(phase, act)
            raise_later(error)
        yield  # or the collector would be told that this one has ended

    def _do(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            if border.of_signal_handler(error):
                raise
            self._failed = error

    def _begins(self) -> None:
        self._times = _collections()
        self._began = perf_counter_ns()

    def _ended(self) -> None:
        if perf_counter_ns() - self._began >= MIN_GC_NS:
            # The collector says which to a function alone.
            counted = zip(self._times, _collections(), strict=False)
            more = [now > was for was, now in counted]
            generation = more.index(True) if any(more) else UNKNOWN
            self._rec.host_span(kinds.GC, self._began, value=generation)


def _collections() -> list[int]:
    """How often each generation was collected."""
    return [one["collections"] for one in gc.get_stats()]


def raise_later(error: BaseException) -> None:
    """Within a callback of the collector: raise an error on this thread, once it is
    back in the code that was interrupted. Raises RuntimeError where no thread can be
    had for it.
    """
    error.__traceback__ = None  # of our frames
    border.mark_as_theirs(error)
    thread = threading.get_ident()
    outside, done = _thread.allocate_lock(), _thread.allocate_lock()
    outside.acquire()
    done.acquire()
    # The last two of this round: no frame of ours is left when the first one runs, and
    # the second one waits.
    last = (_asked(outside.__exit__), _asked(done.acquire))

    def deliver() -> None:  # untraced: its own thread
        outside.acquire()
        try:
            _raise_on(thread, error)
        finally:
            for callback in last:
                gc.callbacks.remove(callback)
            done.release()

    start_thread(deliver)
    gc.callbacks.extend(last)


def _asked(act: Callable[..., object]) -> Callable[..., object]:
    """A callback by which the collector calls a function of C."""
    asked = property(act)
    kind = type("Asked", (int,), {"start": asked, "stop": asked})
    return functools.partial(getattr, kind(1))


def _raise_on(thread: int, error: BaseException) -> None:  # untraced: its own thread
    kind = type(error)
    try:
        # The interpreter takes a class, and makes an error of it: this very one.
        given = type(kind.__name__, (kind,), {"__new__": lambda *_, **__: error})
    except Exception:  # a class that is not to be derived from
        given = kind
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(given)
    )
