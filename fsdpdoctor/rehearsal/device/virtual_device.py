"""The device of a rehearsal: clock, streams, allocator, and what it has to say."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

from fsdpdoctor.quantities import US
from fsdpdoctor.rehearsal.device.host_clock import HostClock
from fsdpdoctor.rehearsal.device.host_costs import HostCosts
from fsdpdoctor.rehearsal.device.memory.caching_allocator import CachingAllocator
from fsdpdoctor.rehearsal.device.spec import DeviceSpec
from fsdpdoctor.rehearsal.device.streams import DeviceLog, StreamTimes

DEFAULT_STREAM = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What an operation puts on its stream."""

    length_ns: int
    kind: str  # "matmul", "attention", "memory", "copy": which rate set its length


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was charged, by kind of kernel: a benchmark's and a reader's overview."""

    ns: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    host_ns: int = 0
    syncs: Counter[str] = field(default_factory=Counter)  # by place
    # What was made up, for lack of numbers, by place or by operator.
    answered: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)  # of these, no floats
    assumed: Counter[str] = field(default_factory=Counter)
    guessed: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)  # since a collective


class VirtualDevice:
    """One GPU that is not there. Its own thread is the script's."""

    def __init__(
        self,
        spec: DeviceSpec,
        *,
        host_scale: float = 1.0,
        log: DeviceLog | None = None,
        clock: HostClock | None = None,
    ) -> None:
        self.spec = spec
        self.clock = HostClock() if clock is None else clock
        self.host = HostCosts(scale=host_scale)
        self.times = StreamTimes(self.clock, round(spec.launch_us * US), log)
        self.times.slow_down(spec.comm_sms / spec.sms)
        self.times.new_stream()
        self.current = DEFAULT_STREAM
        self.tally = Tally()
        settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + os.environ.get(
            "PYTORCH_ALLOC_CONF", ""
        )
        self.allocator = CachingAllocator(
            spec.allocatable_bytes,
            expandable="expandable_segments:true" in settings.lower(),
            stream_done=lambda s: (self.clock.now_ns, self.times.free_ns(s)),
            device_call=self._driver_call,
            wait_until=self.clock.advance_to,
        )

    def _driver_call(self, size: int, freed: bool) -> None:
        """Mapping pages takes its time; cudaFree waits for the whole device first."""
        if freed:
            self.clock.advance_to(self.times.all_free_ns())
        self.charge_host(self.host.driver_ns(size))

    def charge_host(self, ns: int) -> None:
        """The host works."""
        self.tally.host_ns += ns
        self.clock.advance(ns)

    def launch(self, kernel: Kernel, name: str) -> None:
        """Put a kernel on the current stream."""
        self.tally.ns[kernel.kind] += kernel.length_ns
        self.tally.kernels[kernel.kind] += 1
        self.times.run(self.current, kernel.length_ns, name)

    def collective(self, length_ns: int, name: str) -> tuple[int, int]:
        """Put a collective on the current stream. When it starts and ends."""
        self.charge_host(self.host.collective_ns)
        self.tally.reads.clear()
        return self.times.run_collective(self.current, length_ns, name)

    def synchronize(self, place: str | None = None) -> None:
        """The host waits for all that the device has to do."""
        self.charge_host(self.host.sync_ns)
        self.clock.advance_to(self.times.all_free_ns())
        if place is not None:
            self.tally.syncs[place] += 1

    def synchronize_stream(self, stream: int, place: str | None = None) -> None:
        """The host waits for a stream."""
        self.charge_host(self.host.sync_ns)
        self.clock.advance_to(self.times.free_ns(stream))
        if place is not None:
            self.tally.syncs[place] += 1
