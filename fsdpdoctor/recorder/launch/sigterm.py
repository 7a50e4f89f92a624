"""Notes a SIGTERM in the record, and lets it end the process as before.

[Note: SIGTERM] Python runs a signal handler only between two bytecodes, and a
rank may be inside a collective for minutes: a handler alone would keep alive a
process that the default action ends at once. So a thread is woken from C through
the wake-up descriptor, writes the header, restores the default action and sends
the signal again. It stands back where the user has a handler or a wake-up
descriptor of their own, and in forked children. A handler of theirs that calls the
one before it meets one that does nothing, as the default action does when called.
The last word has `SAY_S`: a disk that hangs does not keep the process alive. The
threads are none of `threading`'s, which a script may count or join.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from fsdpdoctor.recorder.forks import see_forks

SAY_S = 2.0


class SigtermHandler:
    """While it lasts, `say` is called with a text before SIGTERM ends us."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._ending = _thread.allocate_lock()
        self._read = self._write = -1

    def start(self) -> bool:
        """Begin to watch, on the main thread; False where the user does so."""
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return False
        try:
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            if before != -1:
                signal.set_wakeup_fd(before)
                self._close()
                return False
            _thread.start_new_thread(self._watch, ())
            signal.signal(signal.SIGTERM, self._handler)
        except (OSError, RuntimeError, ValueError):  # no descriptors, no threads
            self.stop()
            return False
        see_forks(self)
        return True

    def stop(self) -> None:
        """Give the signal back."""
        with contextlib.suppress(ValueError, OSError):
            descriptor = signal.set_wakeup_fd(-1)
            if descriptor not in (-1, self._write):
                signal.set_wakeup_fd(descriptor)  # it is the script's own
            if signal.getsignal(signal.SIGTERM) == self._handler:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._close()

    def forked(self) -> None:
        """A forked child has no thread that would watch."""
        self.stop()

    def _close(self) -> None:
        """The thread reads the pipe's end, and is gone."""
        write, self._write = self._write, -1
        if write >= 0:
            os.close(write)

    def _handler(self, number: int, frame: Any) -> None:
        if signal.getsignal(signal.SIGTERM) == self._handler:
            self._end()

    def _watch(self) -> None:  # untraced: its own thread
        try:
            while number := os.read(self._read, 1):
                if number[0] != signal.SIGTERM:
                    continue
                if signal.getsignal(signal.SIGTERM) == self._handler:
                    self._end()
            os.close(self._read)
        except OSError:
            return

    def _end(self) -> None:  # untraced: the process ends in it
        self._ending.acquire()
        said = _thread.allocate_lock()
        said.acquire()

        def say() -> None:
            try:
                self._say("signal: SIGTERM")
            finally:
                said.release()

        # Without a thread that it could hang in, there is no last word.
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(say, ())
            said.acquire(timeout=SAY_S)
        # signal.signal works on the main thread only; the C function on any.
        ctypes.CDLL(None).signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            time.sleep(SAY_S)  # the process ends here
