"""Peaks between samples are learnt without taking them from the user."""

from __future__ import annotations

from fsdpdoctor.recorder.storage.memory_samples import Peaks, Statistics, resident_bytes


class Allocator:
    """What torch's allocator says, and how its peak is reset."""

    def __init__(self) -> None:
        self.current = self.peak = 0

    def hold(self, size: int) -> None:
        """Allocate or free up to a size."""
        self.current = size
        self.peak = max(self.peak, size)

    def read(self) -> Statistics:
        """As `torch.cuda.memory_stats_as_nested_dict`."""
        values = {"current": self.current, "peak": self.peak}
        return {"allocated_bytes": {"all": values}, "num_ooms": 0}

    def reset(self) -> None:
        """As `torch.cuda.reset_peak_memory_stats`."""
        self.peak = self.current


def peak(statistics: Statistics) -> int:
    """The peak of allocated bytes."""
    found: int = statistics["allocated_bytes"]["all"]["peak"]
    return found


def test_each_sample_has_the_peak_since_the_last() -> None:
    """A lower peak after a higher one is seen."""
    allocator = Allocator()
    peaks = Peaks(allocator.read, allocator.reset)
    seen = []
    for high, low in ((100, 10), (60, 20), (30, 0)):
        allocator.hold(high)
        allocator.hold(low)
        seen.append(peak(peaks.take()))

    assert seen == [100, 60, 30]


def test_the_user_reads_the_peak_of_all_time() -> None:
    """Until the user resets it: then it is the peak since."""
    allocator = Allocator()
    peaks = Peaks(allocator.read, allocator.reset)
    allocator.hold(100)
    allocator.hold(10)
    peaks.take()
    allocator.hold(50)

    assert peak(peaks.give_back(allocator.read())) == 100
    peaks.forget()
    allocator.reset()
    allocator.hold(70)
    assert peak(peaks.give_back(allocator.read())) == 70


def test_reads_resident_memory() -> None:
    """A Python process holds more than a megabyte, and less than the machine."""
    assert 1 << 20 < resident_bytes() < 1 << 40
