"""`torch.cuda.memory` of the virtual device, under the names that torch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fsdpdoctor.rehearsal.device.virtual_device import VirtualDevice

Statistics = dict[str, Any]


class MemoryNames:
    """The modelled allocator's figures."""

    def __init__(self, device: VirtualDevice) -> None:
        self._device = device
        self._allocator = device.allocator

    def functions(self) -> dict[str, Callable[..., Any]]:
        """By name. What torch derives from these, it derives as ever: whoever stands
        before `memory_stats_as_nested_dict`, as the recorder does, is asked.
        """
        it = self._allocator
        return {
            "mem_get_info": lambda *_, **__: self._info(),
            "empty_cache": lambda *_, **__: it.empty_cache(),
            "memory_stats_as_nested_dict": lambda *_, **__: self._nested(),
            "reset_peak_memory_stats": lambda *_, **__: it.reset_peaks(),
            "reset_accumulated_memory_stats": lambda *_, **__: None,
            "memory_summary": lambda *_, **__: "a modelled allocator has no summary",
            "memory_snapshot": lambda *_, **__: [],
            "set_per_process_memory_fraction": self._limit,
            "get_allocator_backend": lambda: "native",
            "_record_memory_history": lambda *_, **__: None,
            "_dump_snapshot": lambda *_, **__: None,
            "_set_allocator_settings": lambda *_, **__: None,
        }

    def _info(self) -> tuple[int, int]:
        spec = self._device.spec
        free = spec.allocatable_bytes - self._allocator.reserved
        return max(free, 0), spec.memory_bytes

    def _limit(self, fraction: float, *_: Any, **__: Any) -> None:
        self._allocator.capacity = min(
            self._device.spec.allocatable_bytes,
            round(fraction * self._device.spec.memory_bytes),
        )

    def _nested(self) -> Statistics:
        it = self._allocator
        allocated = _figures(it.allocated, it.peak_allocated)
        reserved = _figures(it.reserved, it.peak_reserved)
        return {
            "allocated_bytes": {"all": allocated},
            "requested_bytes": {"all": dict(allocated)},
            "active_bytes": {"all": dict(allocated)},
            "reserved_bytes": {"all": reserved},
            "inactive_split_bytes": {"all": _figures(it.reserved - it.allocated, 0)},
            "num_alloc_retries": it.retries,
            "num_ooms": it.ooms,
            "num_device_alloc": it.device_allocations,
            "num_device_free": it.device_frees,
        }


def _figures(current: int, peak: int) -> dict[str, int]:
    return {"current": current, "peak": peak, "allocated": 0, "freed": 0}
