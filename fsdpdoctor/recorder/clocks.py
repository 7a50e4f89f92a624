"""Two clocks behind one interface.

A mark is an integer that a clock later turns into a time: `HostClock`'s marks
are times already, `CudaClock`'s are events that the device has yet to reach.
Nothing here makes the host wait for the device, except the first base.

[Note: Device time on the host's axis]
Each step records a base event. A device time is its base's time plus the
elapsed time between the two, and a base's time follows from the base before
it: `elapsed_time` is a float32 in milliseconds, which against a base of long
ago loses microseconds. The first base is recorded on an idle device, which
puts it at a known host time. Device and host drift apart by parts per million;
an event cannot have happened before the host recorded it, so a step whose
events seem to is moved forward until none does.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import NO_TIME

Int64s = npt.NDArray[np.int64]

_CAPTURED = (
    "a CUDA graph was captured: what ran in the capture was not timed, and what a "
    "replay runs is not seen"
)


class Clock(Protocol):
    """Where the times of device lanes come from."""

    @property
    def name(self) -> str:
        """What `RankHeader.clock` says."""
        ...

    @property
    def of_device(self) -> bool:
        """Whether marks are taken on streams, which run apart from the host."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """What it could not time, for `RankHeader.warnings`."""
        ...

    def mark(self, stream: object = None) -> int:
        """This moment on a stream; None: the current one. NO_TIME where no event
        may be recorded now.
        """
        ...

    def rebase(self) -> None:
        """Begin a step."""
        ...

    def ready(self, mark: int) -> bool:
        """Whether everything marked up to there has happened."""
        ...

    def resolve(self, marks: Int64s) -> Int64s:
        """The times behind marks that are ready. Times pass through; NO_TIME
        for marks that were released.
        """
        ...

    def release(self, mark: int) -> None:
        """Forget the marks before this one; none of them is asked for again."""
        ...


class HostClock:
    """`time.perf_counter_ns`, for devices whose work the host does itself."""

    name = "host"
    of_device = False
    warnings: tuple[str, ...] = ()

    def mark(self, stream: object = None) -> int:
        """Now."""
        return perf_counter_ns()

    def rebase(self) -> None:
        """Nothing to do."""

    def ready(self, mark: int) -> bool:
        """Always."""
        return True

    def resolve(self, marks: Int64s) -> Int64s:
        """Marks are times."""
        return marks

    def release(self, mark: int) -> None:
        """Nothing to do."""


class Event(Protocol):
    """What is used of `torch.cuda.Event(enable_timing=True)`."""

    def record(self, stream: object) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Any) -> float: ...


class CudaClock:
    """Timing events on streams; see [Note: Device time on the host's axis].

    A mark is -1 - i for the i-th event since the clock was made. Events are
    pooled, because making one costs tens of microseconds.

    While a CUDA graph is captured nothing runs, and asking an event would end the
    capture: no event is recorded or asked then, and marks are NO_TIME.
    """

    name = "cuda"
    of_device = True

    def __init__(
        self,
        new_event: Callable[[], Event],
        current_stream: Callable[[], object],
        synchronize: Callable[[], None],
        capturing: Callable[[], bool],
        host_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._new_event = new_event
        self._current_stream = current_stream
        self._synchronize = synchronize
        self._capturing = capturing
        self._captured = False
        self._host_ns = host_ns
        self._pool: list[Event] = []
        self._first = 0  # number of the first event still held
        self._events: list[Event] = []
        self._recorded_ns: list[int] = []
        self._bases: list[tuple[int, Event, int]] = []  # from event, base, its time
        self._times: list[int] = []  # of the first events held: those resolved

    @property
    def warnings(self) -> tuple[str, ...]:
        """Whether a graph was captured while recording was on."""
        if not self._captured:
            return ()
        return (_CAPTURED,)

    def mark(self, stream: object = None) -> int:
        """Record an event on a stream."""
        if self._capturing() or not self._bases:
            self._captured |= self._capturing()
            return NO_TIME
        event = self._pool.pop() if self._pool else self._new_event()
        event.record(self._current_stream() if stream is None else stream)
        self._events.append(event)
        self._recorded_ns.append(self._host_ns())
        return -self._first - len(self._events)

    def rebase(self) -> None:
        """Measure from here on against a new base."""
        if self._capturing():
            return
        first = not self._bases
        if first:
            self._synchronize()
        event = self._new_event()
        event.record(self._current_stream())
        if first:
            self._bases.append((self._next, event, self._host_ns()))
        else:
            self._bases.append((self._next, event, NO_TIME))

    def ready(self, mark: int) -> bool:
        """Whether all events up to a mark have happened."""
        if self._capturing():
            return False
        unresolved = self._events[len(self._times) : -mark - self._first]
        return all(event.query() for event in reversed(unresolved))

    def resolve(self, marks: Int64s) -> Int64s:
        """Device times on the host's axis."""
        of_events = (marks < 0) & (marks != NO_TIME)
        if not of_events.any():
            return marks
        self._resolve_up_to(int(-marks[of_events].min() - self._first))
        times = np.array(self._times, dtype=np.int64)
        index = -1 - marks[of_events] - self._first
        found = np.where(index >= 0, times[np.maximum(index, 0)], NO_TIME)
        resolved = marks.copy()
        resolved[of_events] = found
        return resolved

    def release(self, mark: int) -> None:
        """Give the events before a mark back to the pool."""
        count = min(-1 - mark - self._first, len(self._times))
        if count <= 0:
            return
        self._pool.extend(self._events[:count])
        del self._events[:count], self._recorded_ns[:count], self._times[:count]
        self._first += count
        while len(self._bases) > 1 and self._bases[1][0] <= self._first:
            del self._bases[0]

    @property
    def _next(self) -> int:
        return self._first + len(self._events)

    def _resolve_up_to(self, count: int) -> None:
        begin = len(self._times)
        if count <= begin:
            return
        for i in range(begin, count):
            base, base_ns = self._base_of(self._first + i)
            elapsed_ms = base.elapsed_time(self._events[i])
            self._times.append(base_ns + round(elapsed_ms * MS))
        leads = [self._times[i] - self._recorded_ns[i] for i in range(begin, count)]
        early_ns = min(leads)
        if early_ns < 0:
            for i in range(begin, count):
                self._times[i] -= early_ns
            number, base, base_ns = self._bases[-1]
            if base_ns != NO_TIME:
                self._bases[-1] = (number, base, base_ns - early_ns)

    def _base_of(self, number: int) -> tuple[Event, int]:
        at = 0
        for i, (begin, base, base_ns) in enumerate(self._bases):
            if begin > number:
                break
            if base_ns == NO_TIME:
                _, before, before_ns = self._bases[i - 1]
                base_ns = before_ns + round(before.elapsed_time(base) * MS)
                self._bases[i] = (begin, base, base_ns)
            at = i
        return self._bases[at][1], self._bases[at][2]


def device_clock() -> CudaClock:
    """The clock of this process's CUDA device."""
    cuda: Any = torch.cuda  # parts of it have no types
    return CudaClock(
        new_event=lambda: cuda.Event(enable_timing=True),
        current_stream=cuda.current_stream,
        synchronize=cuda.synchronize,
        capturing=cuda.is_current_stream_capturing,
    )
