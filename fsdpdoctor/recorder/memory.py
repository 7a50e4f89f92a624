"""Memory at unit boundaries: the allocator's figures, or what stands for them."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter_ns

from fsdpdoctor.recorder.recording import Recording
from fsdpdoctor.schema import UNKNOWN, Phase

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """The process's resident memory, UNKNOWN where the system does not say."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return UNKNOWN
    return pages * os.sysconf("SC_PAGE_SIZE")


class HostMemory:
    """On a CPU there is no allocator to ask: live unsharded bytes at each unit's
    boundary, and the process's resident memory where a pass begins or ends.
    """

    def sample(self, recording: Recording, unit: int, phase: Phase) -> None:
        """Add one sample, at a unit's boundary."""
        recording.memory.add(
            perf_counter_ns(), unit, phase, unsharded=recording.live_bytes
        )

    def sample_pass(self, recording: Recording, phase: Phase) -> None:
        """Add one sample where a root's forward or backward begins or ends."""
        recording.memory.add(
            perf_counter_ns(),
            UNKNOWN,
            phase,
            unsharded=recording.live_bytes,
            rss=resident_bytes(),
        )
