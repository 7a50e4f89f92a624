"""The allocator's own events as the memory samples of steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fsdpdoctor.importers.kineto.steps import StepWindow, windows_at
from fsdpdoctor.importers.reader.trace_file import MemoryEvents
from fsdpdoctor.schema import MemorySamples


def samples_of_steps(
    events: MemoryEvents, device: int, steps: Sequence[StepWindow]
) -> list[MemorySamples]:
    """What each step's host saw of one device's allocator.

    Every change of it is an event, so what is allocated is the peak since the last.
    """
    events = events.rows(events.device == device)
    events = events.rows(np.argsort(events.time_ns, kind="stable"))
    step = windows_at(events.time_ns, steps)
    return [_samples(events.rows(step == at)) for at in range(len(steps))]


def _samples(events: MemoryEvents) -> MemorySamples:
    return MemorySamples.build(
        len(events),
        time_ns=events.time_ns,
        allocated_bytes=events.allocated_bytes,
        reserved_bytes=events.reserved_bytes,
        peak_bytes=events.allocated_bytes,
    )
