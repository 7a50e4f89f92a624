"""Notes a SIGTERM in the record, and lets it end the process as before.

[Note: SIGTERM] Python runs a signal handler only between two bytecodes, and a
rank may be inside a collective for minutes: a handler alone would keep alive a
process that the default action ends at once. So a thread is woken from C through
the wake-up descriptor, writes the header, restores the default action and sends
the signal again. It stands back where the user has a handler or a wake-up
descriptor of their own, and in forked children.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from typing import Any


class SigtermHandler:
    """While it lasts, `say` is called with a text before SIGTERM ends us."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._read = self._write = -1

    def start(self) -> bool:
        """Begin to watch, on the main thread; False where the user does so."""
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return False
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            return False
        signal.signal(signal.SIGTERM, self._handler)
        threading.Thread(target=self._watch, daemon=True, name="fsdpdoctor").start()
        os.register_at_fork(after_in_child=self.stop)
        return True

    def stop(self) -> None:
        """Give the signal back."""
        if signal.getsignal(signal.SIGTERM) != self._handler:
            return
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _handler(self, number: int, frame: Any) -> None:
        self._end()

    def _watch(self) -> None:
        while number := os.read(self._read, 1):
            if number[0] != signal.SIGTERM:
                continue
            if signal.getsignal(signal.SIGTERM) == self._handler:
                self._end()

    def _end(self) -> None:
        with self._lock:
            self._say("signal: SIGTERM")
            # signal.signal works on the main thread only; the C function on any.
            ctypes.CDLL(None).signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait()  # never returns: the process ends here
