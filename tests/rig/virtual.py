"""Virtual time: a clock that only sleeps move, for runs whose compute is sleeps.

Real FSDP2 and a real recorder then run as ever, and every figure of theirs is the
same on however busy a machine: what is left to differ is the order of things.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fsdpdoctor.quantities import SECOND
from fsdpdoctor.recorder.host import stack_sampler
from fsdpdoctor.rehearsal import modelled_work

PATCHED = ("fsdpdoctor.recorder.", "fsdpdoctor.rehearsal.")
"""Modules that look at the clock while a job runs."""

TICK_NS = 20
"""What each look at the clock takes, so that no two moments are the same."""


class VirtualClock:
    """Nanoseconds that pass when somebody sleeps or looks."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def read(self) -> int:
        """The time; a tick later."""
        self.now_ns += TICK_NS
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        """Pass some time at once."""
        self.now_ns += max(round(seconds * SECOND), 0)


@contextmanager
def virtual_time() -> Iterator[VirtualClock]:
    """Inside, the rig's models, the modelled wire and the recorder see this clock."""
    clock = VirtualClock()
    patch = pytest.MonkeyPatch()
    patch.setattr(time, "perf_counter_ns", clock.read)
    patch.setattr(time, "sleep", clock.sleep)
    # Another thread's looks would move the clock.
    patch.setattr(stack_sampler, "start_thread", lambda run: None)
    # A modelled wire spins out the end of a sleep, which here is exact.
    patch.setattr(modelled_work, "SPIN_NS", 0)
    for name, module in list(sys.modules.items()):
        if name.startswith(PATCHED) and hasattr(module, "perf_counter_ns"):
            patch.setattr(module, "perf_counter_ns", clock.read)
    try:
        yield clock
    finally:
        patch.undo()
