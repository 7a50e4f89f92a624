"""Memory at unit boundaries: the allocator's figures, or what stands for them.

[Note: Peaks] The allocator keeps one peak, since it was last reset. To learn the
peak between two samples it has to be reset, and then the user's own
`max_memory_allocated()` would read too little. `Peaks` remembers what was reset
and gives it back: whoever asks torch for statistics gets the larger of the two,
until the user resets them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from fsdpdoctor.recorder.border import let_through
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.schema import COUNTER_ALLOC_RETRIES, COUNTER_OOMS, UNKNOWN, Phase

Statistics = dict[str, Any]
"""As torch nests them: `["allocated_bytes"]["all"]["peak"]`, `["num_ooms"]`."""

_STATM = "/proc/self/statm"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """The process's resident memory, UNKNOWN where the system does not say."""
    # Asked several times in a step: a file object would take longer than the system.
    try:
        file = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        let_through(error)
        return UNKNOWN
    try:
        return int(os.read(file, 256).split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError) as error:
        let_through(error)
        return UNKNOWN
    finally:
        os.close(file)


class Memory(Protocol):
    """Takes samples of memory."""

    def sample(
        self, recording: Recording, unit: int, phase: Phase, time_ns: int
    ) -> None:
        """Add one sample, at a unit's boundary."""
        ...

    def sample_pass(self, recording: Recording, phase: Phase) -> None:
        """Add one sample where a root's forward or backward begins or ends."""
        ...

    def count(self, recording: Recording) -> None:
        """Add the allocator's counters at the end of a step."""
        ...


class HostMemory:
    """On a CPU there is no allocator to ask: live unsharded bytes at each unit's
    boundary, and the process's resident memory where a pass begins or ends.
    """

    def sample(
        self, recording: Recording, unit: int, phase: Phase, time_ns: int
    ) -> None:
        """Add one sample, at a unit's boundary."""
        recording.memory.add(
            time_ns,
            unit,
            phase,
            unsharded=recording.alive_bytes(),
        )

    def sample_pass(self, recording: Recording, phase: Phase) -> None:
        """Add one sample where a root's forward or backward begins or ends."""
        recording.memory.add(
            perf_counter_ns(),
            UNKNOWN,
            phase,
            unsharded=recording.alive_bytes(),
            rss=resident_bytes(),
        )

    def count(self, recording: Recording) -> None:
        """There is nothing to count."""


class Peaks:
    """Allocator peaks that were reset, kept for the user; see [Note: Peaks]."""

    def __init__(
        self, read: Callable[[], Statistics], reset: Callable[[], None]
    ) -> None:
        self._read = read
        self._reset = reset
        self._kept: dict[tuple[str, str], int] = {}

    def take(self) -> Statistics:
        """The statistics, whose peaks are those since the last call."""
        statistics = self._read()
        for name, pools in statistics.items():
            if not isinstance(pools, dict):
                continue
            for pool, values in pools.items():
                if isinstance(values, dict) and "peak" in values:
                    key = name, pool
                    self._kept[key] = max(self._kept.get(key, 0), values["peak"])
        self._reset()
        return statistics

    def give_back(self, statistics: Statistics) -> Statistics:
        """What the user would have read had nobody reset the peaks."""
        for (name, pool), peak in self._kept.items():
            values = statistics.get(name, {}).get(pool)
            if values is not None:
                values["peak"] = max(values["peak"], peak)
        return statistics

    def forget(self) -> None:
        """The user resets the peaks."""
        self._kept.clear()


class DeviceMemory:
    """The CUDA caching allocator. A sample costs tens of microseconds."""

    def __init__(self, peaks: Peaks) -> None:
        self._peaks = peaks
        self._last: Statistics = {}

    def sample(
        self, recording: Recording, unit: int, phase: Phase, time_ns: int
    ) -> None:
        """Add one sample, with the peak since the last."""
        self._last = statistics = self._peaks.take()
        allocated = statistics["allocated_bytes"]["all"]
        recording.memory.add(
            time_ns,  # the allocator runs with the host, not the device
            unit,
            phase,
            allocated=allocated["current"],
            reserved=statistics["reserved_bytes"]["all"]["current"],
            peak=allocated["peak"],
            unsharded=recording.alive_bytes(),
        )

    def sample_pass(self, recording: Recording, phase: Phase) -> None:
        """Add one sample where a root's forward or backward begins or ends."""
        self.sample(recording, UNKNOWN, phase, perf_counter_ns())

    def count(self, recording: Recording) -> None:
        """Add how often the allocator had to free its cache and try again."""
        for key, name in (
            ("num_alloc_retries", COUNTER_ALLOC_RETRIES),
            ("num_ooms", COUNTER_OOMS),
        ):
            if key in self._last:
                recording.counters.add(
                    recording.names.id(name), perf_counter_ns(), self._last[key]
                )


_peaks: Peaks | None = None
"""Of this process. It outlives a recording: what was reset stays to be given back."""


def memory_of(*, device: bool) -> Memory:
    """What to sample: the device's allocator, or the host."""
    if not device:
        return HostMemory()
    global _peaks
    if _peaks is None:
        _peaks = _keep_peaks()
    return DeviceMemory(_peaks)


def _keep_peaks() -> Peaks:
    cuda: Any = torch.cuda.memory
    read, reset = cuda.memory_stats_as_nested_dict, cuda.reset_peak_memory_stats
    peaks = Peaks(read, reset)

    def memory_stats_as_nested_dict(device: Any = None) -> Statistics:
        statistics: Statistics = read(device=device)
        try:
            return peaks.give_back(statistics)
        except (KeyError, TypeError, AttributeError) as error:
            let_through(error)
            return statistics  # nested otherwise than any torch has it

    def reset_peak_memory_stats(device: Any = None) -> None:
        peaks.forget()
        reset(device=device)

    cuda.memory_stats_as_nested_dict = memory_stats_as_nested_dict
    cuda.reset_peak_memory_stats = reset_peak_memory_stats
    if torch.cuda.reset_peak_memory_stats is reset:  # else somebody's own
        torch.cuda.reset_peak_memory_stats = reset_peak_memory_stats
    return peaks
