"""The host's time: a number, moved on by what the host does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from fsdpdoctor.quantities import SECOND
from fsdpdoctor.recorder.patching import Patches

Replacement = Callable[..., Any]


class HostClock:
    """Virtual nanoseconds, on the axis of `time.perf_counter_ns`."""

    def __init__(self, start_ns: int | None = None) -> None:
        self.now_ns = time.perf_counter_ns() if start_ns is None else start_ns
        self._thread = threading.get_ident()
        self._unix_minus_now_ns = time.time_ns() - self.now_ns

    def advance(self, by_ns: int) -> None:
        """The host works, or sleeps."""
        self.now_ns += by_ns

    def advance_to(self, until_ns: int) -> None:
        """The host waits for something; it may have happened already."""
        self.now_ns = max(self.now_ns, until_ns)

    def read_ns(self) -> int:
        """`time.perf_counter_ns` of the virtual host."""
        return self.now_ns

    def functions(self) -> dict[str, Replacement]:
        """Functions of `time`, by name. A sleep passes at once, in the training's own
        thread; other threads are none of the rehearsal's.
        """
        sleep, thread = time.sleep, self._thread

        def virtual_sleep(seconds: float) -> None:
            if threading.get_ident() == thread:
                self.advance(round(seconds * SECOND))
            else:
                sleep(seconds)

        return {
            "perf_counter_ns": self.read_ns,
            "perf_counter": lambda: self.now_ns / SECOND,
            "monotonic_ns": self.read_ns,
            "monotonic": lambda: self.now_ns / SECOND,
            "time_ns": lambda: self.now_ns + self._unix_minus_now_ns,
            "time": lambda: (self.now_ns + self._unix_minus_now_ns) / SECOND,
            "sleep": virtual_sleep,
        }

    def take_over(self, patches: Patches, modules: list[Any]) -> None:
        """Answer `time`, and each of the modules that imported a function of it."""
        for name, function in self.functions().items():
            original = getattr(time, name)
            for module in modules:
                if vars(module).get(name) is original:
                    patches.put(module, name, function)
            patches.put(time, name, function)
