"""Whether there is memory for what is to be tried.

On a device the driver says how much is free: what the allocator has kept counts as
used, so that a change fits even where nothing of that can be used again. Without a
device the host's own figures guard: what the kernel could give without swapping, and
what the container's limit leaves; both are shared with the other ranks of the host.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

from fsdpdoctor.errors import NoRoomError
from fsdpdoctor.quantities import size as size_words
from fsdpdoctor.recorder.storage.run_folder import number

MARGIN = 0.05
"""Of all memory stays free, whatever is predicted: a prediction knows no workspace of
a library and no fragment."""

SURE = 1.2
"""So many times what is predicted has to fit."""

_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


class MemoryRoom:
    """What is free, as it was looked at last, by the training thread."""

    def __init__(self, device: int | None) -> None:
        """`device` is the number of a CUDA device, None for none."""
        self._device = device
        self._free: int | None = None
        self._total: int | None = None

    @property
    def of_device(self) -> bool:
        return self._device is not None

    def look(self) -> None:
        """Ask now. On a device it takes some microseconds and waits for nothing."""
        if self._device is None:
            self._free, self._total = host_memory()
        elif not torch.cuda.is_current_stream_capturing():
            self._free, self._total = torch.cuda.mem_get_info(self._device)

    def need(self, more_bytes: int) -> None:
        """Raise NoRoomError where so much more does not fit. Where memory is short
        already nothing does.
        """
        if more_bytes <= 0 and not self.over:
            return
        if self._free is None or self._total is None:
            raise NoRoomError("how much memory is free is not known", 0)
        margin = round(MARGIN * self._total)
        needed = round(SURE * more_bytes) + margin
        if needed > self._free:
            raise NoRoomError(
                f"{size_words(self._free)} of memory are free, and "
                f"{size_words(needed)} are to be: {size_words(more_bytes)} more, with "
                "a margin",
                fits_bytes=self._fits(margin),
            )

    def _fits(self, margin: int) -> int:
        """Less than nothing, where not even what takes nothing may be tried."""
        assert self._free is not None
        return -1 if self.over else max(int((self._free - margin) / SURE), 0)

    @property
    def over(self) -> bool:
        """Whether less than half of the margin is left."""
        if self._free is None or self._total is None:
            return False
        return self._free < MARGIN / 2 * self._total


def host_memory(
    meminfo: Path = _MEMINFO, group: Path = _GROUP
) -> tuple[int | None, int | None]:
    """Free and all memory of this host, a rank's part of it; None: not known."""
    ranks = max(number("LOCAL_WORLD_SIZE", 1), 1)
    free, total = _of_kernel(meminfo)
    with contextlib.suppress(OSError, ValueError):  # no limit, or none that is told
        limit = int((group / "memory.max").read_text())
        left = limit - int((group / "memory.current").read_text())
        left += _of_lines(group / "memory.stat", " ").get("inactive_file", 0)
        free = left if free is None else min(free, left)
        total = limit if total is None else min(total, limit)
    if free is None or total is None:
        return None, None
    return max(free, 0) // ranks, total // ranks


def _of_kernel(meminfo: Path) -> tuple[int | None, int | None]:
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        found = {k: v * 1024 for k, v in _of_lines(meminfo, ":").items()}
    return found.get("MemAvailable"), found.get("MemTotal")


def _of_lines(path: Path, between: str) -> dict[str, int]:
    """Numbers by name, one a line. Raises OSError, ValueError."""
    named = (line.partition(between) for line in path.read_text().splitlines())
    return {name: int(said.split()[0]) for name, _, said in named}
