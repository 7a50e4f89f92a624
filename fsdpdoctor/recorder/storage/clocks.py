"""Two clocks behind one interface.

A tick is an integer that a clock later turns into a time: `HostClock`'s ticks
are times already, `CudaClock`'s are events that the device has yet to reach.
Nothing here makes the host wait for the device, except the first base and `arrives`.

[Note: Device time on the host's axis]
Each step records a base event. A device time is its base's time plus the
elapsed time between the two, and a base's time follows from the base before
it: `elapsed_time` is a float32 in milliseconds, which against a base of long
ago loses microseconds. The first base is recorded on an idle device, which
puts it at a known host time.

Device and host drift apart by parts per million: milliseconds in an hour, which
would pass for time that a collective was queued. Bases are therefore recorded on
a stream that nothing else uses. Such an event happens as soon as the host records
it, so what it seems to be late, the least of the last few times, is drift, and is
taken back. An event cannot have happened before the host recorded it either: a
step whose events seem to is moved forward until none does.

Where all streams share one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1) an event
waits for the work before it on any stream, and only the last rule holds.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fsdpdoctor.errors import UsageError
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import NO_TIME

Int64s = npt.NDArray[np.int64]

_LAGS = 4
"""Of how many bases the least late is believed: one can be a busy host's 100 us."""

_MOST_DRIFT = 1e-4
"""Crystals differ by some 10 to 50 ppm at most; what seems more is something else."""

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
        """Whether ticks are taken on streams, which run apart from the host."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """What it could not time, for `RankHeader.warnings`."""
        ...

    def tick(self, stream: object = None) -> int:
        """This moment on a stream; None: the current one. NO_TIME where no event
        may be recorded now.
        """
        ...

    def rebase(self) -> None:
        """Begin a step."""
        ...

    def ready(self, tick: int) -> bool:
        """Whether everything marked up to there has happened."""
        ...

    def resolve(self, ticks: Int64s) -> Int64s:
        """The times behind ticks that are ready. Times pass through; NO_TIME
        for ticks that were released.
        """
        ...

    def release(self, tick: int) -> None:
        """Forget the ticks before this one; none of them is asked for again."""
        ...


class HostClock:
    """`time.perf_counter_ns`, for devices whose work the host does itself."""

    name = "host"
    of_device = False
    warnings: tuple[str, ...] = ()

    def tick(self, stream: object = None) -> int:
        """Now."""
        return perf_counter_ns()

    def rebase(self) -> None:
        """Nothing to do."""

    def ready(self, tick: int) -> bool:
        """Always."""
        return True

    def resolve(self, ticks: Int64s) -> Int64s:
        """Marks are times."""
        return ticks

    def release(self, tick: int) -> None:
        """Nothing to do."""


class Event(Protocol):
    """What is used of `torch.cuda.Event(enable_timing=True)`."""

    def record(self, stream: object) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Any) -> float: ...


@dataclass(slots=True)
class _Base:
    """A step's base event. Its times are there once a tick of the step is asked for."""

    first: int  # number of the first event that is measured against it
    event: Event
    host_ns: int  # when the host recorded it
    device_ns: int = NO_TIME  # on the device's own axis, which the first base puts
    offset_ns: int = 0  # added to a time of that axis, gives the host's


class CudaClock:
    """Timing events on streams; see [Note: Device time on the host's axis].

    A tick is -1 - i for the i-th event since the clock was made. Events are
    pooled, because making one costs tens of microseconds.

    While a CUDA graph is captured nothing runs, and asking an event would end the
    capture: no event is recorded or asked then, and ticks are NO_TIME.
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
        idle_stream: object = None,
    ) -> None:
        self._new_event = new_event
        self._current_stream = current_stream
        self._synchronize = synchronize
        self._capturing = capturing
        self._captured = False
        self._host_ns = host_ns
        self._idle_stream = idle_stream  # None: no stream is sure to be idle
        self._pool: list[Event] = []
        self._first = 0  # number of the first event still held
        self._events: list[Event] = []
        self._recorded_ns: list[int] = []
        self._bases: list[_Base] = []
        self._lags_ns: deque[int] = deque(maxlen=_LAGS)  # of the last bases
        self._times: list[int] = []  # of the first events held: those resolved

    @property
    def warnings(self) -> tuple[str, ...]:
        """Whether a graph was captured while recording was on."""
        if not self._captured:
            return ()
        return (_CAPTURED,)

    def tick(self, stream: object = None) -> int:
        """Record an event on a stream."""
        if self._capturing() or not self._bases:
            self._captured |= self._capturing()
            return NO_TIME
        event = self._pool.pop() if self._pool else self._new_event()
        self._recorded_ns.append(self._host_ns())
        event.record(self._current_stream() if stream is None else stream)
        self._events.append(event)
        return -self._first - len(self._events)

    def rebase(self) -> None:
        """Measure from here on against a new base."""
        if self._capturing():
            return
        first = not self._bases
        if first:
            self._synchronize()
        event = self._pool.pop() if self._pool else self._new_event()
        stream = self._idle_stream
        base = _Base(first=self._next, event=event, host_ns=self._host_ns())
        event.record(self._current_stream() if stream is None else stream)
        if first:
            base.device_ns = base.host_ns
        self._bases.append(base)

    def ready(self, tick: int) -> bool:
        """Whether all events up to a tick have happened."""
        if self._capturing():
            return False
        unresolved = self._events[len(self._times) : -tick - self._first]
        bases = [b.event for b in self._bases if b.device_ns == NO_TIME]
        return all(event.query() for event in (*reversed(unresolved), *bases))

    def resolve(self, ticks: Int64s) -> Int64s:
        """Device times on the host's axis."""
        of_events = (ticks < 0) & (ticks != NO_TIME)
        if not of_events.any():
            return ticks
        self._resolve_up_to(int(-ticks[of_events].min() - self._first))
        times = np.array(self._times, dtype=np.int64)
        index = -1 - ticks[of_events] - self._first
        found = np.where(index >= 0, times[np.maximum(index, 0)], NO_TIME)
        resolved = ticks.copy()
        resolved[of_events] = found
        return resolved

    def release(self, tick: int) -> None:
        """Give the events before a tick back to the pool."""
        count = min(-1 - tick - self._first, len(self._times))
        if count <= 0:
            return
        self._pool.extend(self._events[:count])
        del self._events[:count], self._recorded_ns[:count], self._times[:count]
        self._first += count
        while len(self._bases) > 1 and self._bases[1].first <= self._first:
            self._pool.append(self._bases.pop(0).event)

    @property
    def _next(self) -> int:
        return self._first + len(self._events)

    def _resolve_up_to(self, count: int) -> None:
        begin = len(self._times)
        if count <= begin:
            return
        for i in range(begin, count):
            base = self._base_of(self._first + i)
            elapsed_ns = round(base.event.elapsed_time(self._events[i]) * MS)
            self._times.append(base.device_ns + base.offset_ns + elapsed_ns)
        leads = [self._times[i] - self._recorded_ns[i] for i in range(begin, count)]
        early_ns = min(leads)
        if early_ns < 0:
            for i in range(begin, count):
                self._times[i] -= early_ns
            base.offset_ns -= early_ns

    def _base_of(self, number: int) -> _Base:
        """The base that an event is measured against, with its times."""
        at = 0
        for i, base in enumerate(self._bases):
            if base.first > number:
                break
            if base.device_ns == NO_TIME:
                before = self._bases[i - 1]
                elapsed_ns = round(before.event.elapsed_time(base.event) * MS)
                base.device_ns = before.device_ns + elapsed_ns
                base.offset_ns = self._steered(base, before)
            at = i
        return self._bases[at]

    def _steered(self, base: _Base, before: _Base) -> int:
        """The offset from a base on; see [Note: Device time on the host's axis]."""
        if self._idle_stream is None:
            return before.offset_ns
        self._lags_ns.append(base.device_ns - base.host_ns)
        late_ns = min(self._lags_ns) + before.offset_ns
        if len(self._lags_ns) < _LAGS and late_ns > 0:
            return before.offset_ns
        most_ns = round(_MOST_DRIFT * (base.host_ns - before.host_ns))
        return before.offset_ns - min(late_ns, most_ns)


def device_clock() -> CudaClock:
    """The clock of this process's CUDA device."""
    cuda: Any = torch.cuda  # parts of it have no types
    one_queue = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"
    return CudaClock(
        new_event=lambda: cuda.Event(enable_timing=True),
        current_stream=cuda.current_stream,
        synchronize=cuda.synchronize,
        capturing=cuda.is_current_stream_capturing,
        host_ns=perf_counter_ns,  # that of now: a rehearsal has another
        idle_stream=None if one_queue else cuda.Stream(),
    )


def check_device(device: str, known: str) -> None:
    """Whether a record can have units on a device, with others on a known one. Raises
    UsageError.
    """
    if device != known:
        raise UsageError(
            f"units on {device} beside units on {known}: a record has one "
            "clock, so record a process whose units are on one device"
        )
    if device not in ("cpu", "cuda"):
        raise UsageError(
            f"the model is on {device}, whose streams the recorder cannot time: "
            "expected cpu or cuda"
        )


DEVICE_LOOK_S = 0.001
DEVICE_WAIT_S = 5.0
"""How long the end of the process may be put off for the device: longer is a hang."""


def arrives(clock: Clock, tick: int) -> bool:
    """Wait until the device has come to a tick, but never for good: of an error, it may
    be in a kernel without end.
    """
    looks = round(DEVICE_WAIT_S / DEVICE_LOOK_S)
    while not clock.ready(tick):
        looks -= 1
        if looks < 0:
            return False
        time.sleep(DEVICE_LOOK_S)
    return True
