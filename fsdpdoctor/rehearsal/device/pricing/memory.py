"""Everything that moves more than it computes."""

from __future__ import annotations

from fsdpdoctor.rehearsal.device.spec import DeviceSpec


def bytes_ns(spec: DeviceSpec, moved: float) -> float:
    """Reading and writing so many bytes, in a kernel that is under way."""
    return moved / (spec.bandwidth_gb_s * spec.bandwidth_share)


def kernel_ns(spec: DeviceSpec, moved: float) -> int:
    """A kernel of its own that reads and writes so many bytes."""
    return round(bytes_ns(spec, moved) + spec.kernel_us * 1e3)


def copy_ns(spec: DeviceSpec, moved: int, *, pinned: bool) -> int:
    """A copy between host and device, once the copy engine has begun."""
    rate = spec.copy_gb_s if pinned else spec.pageable_gb_s
    return round(moved / rate + spec.kernel_us * 1e3)
