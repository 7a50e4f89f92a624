"""`torch.cuda.Stream` and `torch.cuda.Event` over virtual time."""

from __future__ import annotations

from typing import Any

from fsdpdoctor.recorder.host.host_hooks import user_line
from fsdpdoctor.rehearsal.device.function_mode import CUDA
from fsdpdoctor.rehearsal.device.memory.caching_allocator import CachingAllocator
from fsdpdoctor.rehearsal.device.streams import elapsed_ms
from fsdpdoctor.rehearsal.device.virtual_device import DEFAULT_STREAM, VirtualDevice


class Stream:
    """A stream of the virtual device."""

    _virtual: VirtualDevice  # of the subclass that a rehearsal makes

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        number: int | None = None,
        **_: Any,
    ) -> None:
        self.number = self._virtual.times.new_stream() if number is None else number
        self.priority = priority
        self.device = CUDA
        self.device_index, self.device_type = 0, 1
        self._entered: list[int] = []

    @property
    def stream_id(self) -> int:
        return self.number

    @property
    def cuda_stream(self) -> int:
        return self.number

    @property
    def device_allocator(self) -> CachingAllocator:
        """Who has to be told that a block is used on this stream."""
        return self._virtual.allocator

    def wait_event(self, event: Any) -> None:
        """What comes next waits for the event; the host does not."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """What comes next waits for all that is on the other one now."""
        times = self._virtual.times
        times.wait(self.number, times.free_ns(stream.number))

    def record_event(self, event: Any = None) -> Any:
        """An event that happens when all that is on the stream now has ended."""
        event = self._event() if event is None else event
        event.record(self)
        return event

    def _event(self) -> Any:
        raise NotImplementedError  # the subclass knows the type

    def query(self) -> bool:
        """Whether all of it has ended."""
        return self._virtual.times.is_idle(self.number)

    def is_capturing(self) -> bool:
        """Graphs are not captured."""
        return False

    def synchronize(self) -> None:
        """The host waits."""
        self._virtual.synchronize_stream(self.number, user_line())

    def __enter__(self) -> Stream:
        self._entered.append(self._virtual.current)
        self._virtual.current = self.number
        return self

    def __exit__(self, *_: object) -> None:
        self._virtual.current = self._entered.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return f"<virtual stream {self.number}>"


class Event:
    """An event of the virtual device: a moment, once it is recorded."""

    _virtual: VirtualDevice

    def __init__(self, *_: Any, **__: Any) -> None:
        self.time_ns: int | None = None

    def record(self, stream: Any = None) -> None:
        """It happens when all that is on the stream now has ended."""
        number = self._virtual.current if stream is None else stream.number
        self.time_ns = self._virtual.times.free_ns(number)

    def wait(self, stream: Any = None) -> None:
        """What comes next on a stream waits for it."""
        number = self._virtual.current if stream is None else stream.number
        if self.time_ns is not None:
            self._virtual.times.wait(number, self.time_ns)

    def query(self) -> bool:
        """Whether it has happened."""
        return self.time_ns is None or self.time_ns <= self._virtual.clock.now_ns

    def synchronize(self) -> None:
        """The host waits for it."""
        self._virtual.charge_host(self._virtual.host.sync_ns)
        if self.time_ns is not None:
            self._virtual.clock.advance_to(self.time_ns)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds, of which no nanosecond is lost."""
        if self.time_ns is None or end_event.time_ns is None:
            raise RuntimeError(
                "Both events must be recorded before calculating elapsed time."
            )
        return elapsed_ms(self.time_ns, end_event.time_ns)


class Types:
    """The two classes, for one device."""

    def __init__(self, device: VirtualDevice) -> None:
        class OfDevice(Stream):
            _virtual = device

            def _event(self) -> Any:
                return event_type()

        class EventOfDevice(Event):
            _virtual = device

        event_type = EventOfDevice
        OfDevice.__name__ = OfDevice.__qualname__ = "Stream"
        EventOfDevice.__name__ = EventOfDevice.__qualname__ = "Event"
        self._device = device
        self._stream, self._event = OfDevice, EventOfDevice
        self._made: dict[int, Stream] = {}
        self.stream(DEFAULT_STREAM)

    def by_name(self) -> dict[str, type]:
        """As `torch.cuda` calls them."""
        return {"Stream": self._stream, "Event": self._event}

    def stream(self, number: int) -> Stream:
        """The object of a stream that is there."""
        found = self._made.get(number)
        if found is None:
            found = self._made[number] = self._stream(number=number)
        return found

    def context(self, stream: Stream | None) -> Any:
        """`torch.cuda.stream(...)`."""
        return StreamContext(self._device, stream)


class StreamContext:
    """What is called inside goes onto a stream."""

    def __init__(self, device: VirtualDevice, stream: Stream | None) -> None:
        self._device = device
        self._stream = stream
        self._before = DEFAULT_STREAM

    def __enter__(self) -> StreamContext:
        self._before = self._device.current
        if self._stream is not None:
            self._device.current = self._stream.number
        return self

    def __exit__(self, *_: object) -> None:
        self._device.current = self._before
