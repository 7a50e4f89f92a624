"""What is said of a memory snapshot: the one value that every renderer takes."""

from __future__ import annotations

from dataclasses import dataclass

SNAPSHOT_SCHEMA_VERSION = 1
"""Of the JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRow:
    """A part of what was held, by what it was for."""

    bucket: str | None  # None: it cannot be told
    why: str | None  # then: the reason
    bytes: int
    allocations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRow:
    """A unit's part, by what it was for."""

    unit: str | None  # None: of none that could be told
    told_by: str | None  # "range": one of FSDP2's; "metadata": the user's own word
    why: str | None  # it is not told: the reason
    bytes: int
    buckets: dict[str, int]  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRow:
    """A line of the user's, and what was allocated under it."""

    where: str | None  # None: no frame is the user's
    function: str | None
    bytes: int
    allocations: int
    buckets: dict[str, int]  # bytes; "unknown": of what cannot be told


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Allocations of one stack and purpose: what holds most."""

    bytes: int
    allocations: int
    bucket: str | None
    why: str | None
    units: tuple[str, ...]
    where: str | None
    stack: tuple[str, ...]  # "file:line function", innermost first
    metadata: str | None  # what the user had set with _set_memory_metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What was held at one moment."""

    time_us: int | None  # since 1970; None: the history has no times
    held_bytes: int  # asked for, and not yet free for others
    awaiting_free_bytes: int  # of it: freed, while another stream still uses it
    before_bytes: int  # of it: allocated before the history began
    reserved_bytes: int | None  # that the allocator had of the device
    buckets: tuple[BucketRow, ...]
    units: tuple[UnitRow, ...]
    sites: tuple[SiteRow, ...]
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """Segments of one kind, as the snapshot was taken."""

    pool: tuple[int, int]  # [0, 0] is the default
    kind: str  # "small", "large"
    expandable: bool
    stream: int
    segments: int
    reserved_bytes: int
    allocated_bytes: int  # blocks in use, as rounded up
    requested_bytes: int  # the same, as asked for
    free_bytes: int
    largest_free_bytes: int  # in one piece
    releasable_bytes: int  # in segments that hold nothing: empty_cache gives them back


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """An allocation that did not fit."""

    time_us: int | None
    asked_bytes: int
    device_free_bytes: int
    held_bytes: int
    reserved_bytes: int | None
    unused_bytes: int | None  # reserved and held by nobody: rounding, fragmentation
    bucket: str | None
    why: str | None
    unit: str | None
    where: str | None
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A line whose memory grew in every step after the first."""

    where: str | None
    function: str | None
    bucket: str | None
    bytes_per_step: int
    held_bytes: int  # as the last step ended
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """One device's allocator."""

    device: int
    events: int
    begin_time_us: int | None  # of the history, since 1970
    end_time_us: int | None
    steps: int | None  # in the history; None: nothing in it tells
    steps_by: str | None
    peak: Held | None  # None: no history was recorded
    highest_reserved_bytes: int | None
    highest_reserved_time_us: int | None
    end: Held  # as the snapshot was taken
    allocated_bytes: int  # as the snapshot was taken, as rounded up
    pools: tuple[PoolRow, ...]
    out_of_memory: tuple[OutOfMemory, ...]
    growth: tuple[Growth, ...] | None  # None: it cannot be told
    growth_why: str | None  # then: the reason
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReport:
    """One file."""

    path: str
    rank: int | None  # by the file's name
    settings: str | None  # PYTORCH_CUDA_ALLOC_CONF
    history: str  # "all", "without_stacks", "state", "none"
    devices: tuple[DeviceReport, ...]
    notes: tuple[str, ...]

    @property
    def main(self) -> DeviceReport | None:
        """The device that held most."""
        return max(self.devices, key=most_bytes, default=None)


def most_bytes(device: DeviceReport) -> int:
    """The most that a device held; as the snapshot was taken where no history tells."""
    return device.end.held_bytes if device.peak is None else device.peak.held_bytes
