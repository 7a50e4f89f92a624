"""Streams in virtual time: each is the moment until which it is busy."""

from __future__ import annotations

from dataclasses import dataclass, field

from fsdpdoctor.quantities import MS
from fsdpdoctor.rehearsal.device.host_clock import HostClock

_REMEMBERED = 64
"""Collectives, the newest: what is older ended long before compute gets there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWait:
    """A stream stood still until an event: the device's own word on exposure."""

    stream: int
    start_ns: int  # what was on the stream had ended, and the host had asked
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RanKernel:
    """What ran on a stream, and when."""

    name: str
    stream: int
    start_ns: int
    end_ns: int


@dataclass(slots=True, kw_only=True)
class DeviceLog:
    """All that streams did, in the order of the host's calls."""

    waits: list[StreamWait] = field(default_factory=list)
    kernels: list[RanKernel] = field(default_factory=list)


class StreamTimes:
    """The times of one device's streams."""

    def __init__(
        self, clock: HostClock, launch_ns: int = 0, log: DeviceLog | None = None
    ) -> None:
        self.clock = clock
        self.log = log
        self._launch_ns = launch_ns
        self._slowed = 0.0
        self._shared: list[tuple[int, int]] = []  # when collectives run, merged
        self._free_ns: list[int] = []  # by stream
        self.busy_ns: list[int] = []  # by stream, in total

    def new_stream(self) -> int:
        """A stream with nothing on it."""
        self._free_ns.append(self.clock.now_ns)
        self.busy_ns.append(0)
        return len(self._free_ns) - 1

    def slow_down(self, share: float) -> None:
        """What collectives that run at the same time take of compute's rate."""
        self._slowed = share

    def free_ns(self, stream: int) -> int:
        """When all that is on a stream has ended; never before now."""
        return max(self._free_ns[stream], self.clock.now_ns)

    def run(self, stream: int, length_ns: int, name: str = "") -> tuple[int, int]:
        """Put work on a stream. When it starts and ends."""
        ready_ns = self.clock.now_ns + self._launch_ns
        start_ns = max(self._free_ns[stream], ready_ns)
        return self._ran(stream, start_ns, self._end_ns(start_ns, length_ns), name)

    def run_collective(self, stream: int, length_ns: int, name: str) -> tuple[int, int]:
        """Put a collective on a stream: what computes meanwhile is slower."""
        start_ns = max(self._free_ns[stream], self.clock.now_ns + self._launch_ns)
        end_ns = start_ns + length_ns
        if self._slowed and length_ns:
            self._share(start_ns, end_ns)
        return self._ran(stream, start_ns, end_ns, name)

    def _share(self, start_ns: int, end_ns: int) -> None:
        shared = self._shared
        while shared and shared[-1][1] >= start_ns:
            before = shared.pop()
            start_ns, end_ns = min(before[0], start_ns), max(before[1], end_ns)
        shared.append((start_ns, end_ns))
        del shared[:-_REMEMBERED]

    def _end_ns(self, start_ns: int, length_ns: int) -> int:
        """When work ends that is slowed while collectives run."""
        left, at = float(length_ns), start_ns
        for begin, end in self._shared:
            if end <= at:
                continue
            before = max(begin - at, 0)
            if left <= before:
                break
            left, at = left - before, at + before
            done = (end - at) * (1 - self._slowed)
            if left <= done:
                return at + round(left / (1 - self._slowed))
            left, at = left - done, end
        return at + round(left)

    def _ran(
        self, stream: int, start_ns: int, end_ns: int, name: str
    ) -> tuple[int, int]:
        self._free_ns[stream] = end_ns
        self.busy_ns[stream] += end_ns - start_ns
        if self.log is not None:
            self.log.kernels.append(
                RanKernel(name=name, stream=stream, start_ns=start_ns, end_ns=end_ns)
            )
        return start_ns, end_ns

    def wait(self, stream: int, until_ns: int) -> None:
        """What comes next on a stream waits for a moment."""
        start_ns = self.free_ns(stream)
        end_ns = max(start_ns, until_ns)
        self._free_ns[stream] = max(self._free_ns[stream], until_ns)
        if self.log is not None:
            self.log.waits.append(
                StreamWait(stream=stream, start_ns=start_ns, end_ns=end_ns)
            )

    def is_idle(self, stream: int) -> bool:
        """Whether all that is on a stream has ended."""
        return self._free_ns[stream] <= self.clock.now_ns

    def all_free_ns(self) -> int:
        """When the whole device has ended its work."""
        return max(self._free_ns, default=self.clock.now_ns)


def elapsed_ms(start_ns: int, end_ns: int) -> float:
    """As `Event.elapsed_time` says it, without its float32: no nanosecond is lost."""
    return (end_ns - start_ns) / MS
