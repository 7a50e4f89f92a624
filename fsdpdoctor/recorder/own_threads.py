"""Threads of ours, and writes of ours, of which no signal of the script's hears.

The kernel gives a signal that is sent to the process to any thread that does not block
it. A script that blocks one, to wait for it, would get it as without us only where our
threads block it, too. They are none of `threading`'s, which a script may count or join.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import signal
from collections.abc import Callable, Iterator

_OF_AN_ERROR = frozenset(
    {
        *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL),
        *(signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS),
    }
)
"""Of what a thread itself does; blocked, they would end the process without a word."""

_OF_WRITING = frozenset({signal.SIGXFSZ, signal.SIGPIPE})
"""A file beyond a limit, a pipe that nobody reads: an error says so, too."""

LEAVES_IN_S = 2.0
"""How long the end of the process may wait for a thread of ours."""


def start_thread(run: Callable[..., None], *args: object) -> None:
    """Start it with all signals blocked. Raises RuntimeError where none can be had."""
    blocked = signal.valid_signals() - _OF_AN_ERROR
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        _thread.start_new_thread(run, args)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Door:
    """Before code in C++ that gives the interpreter up while it runs.

    Python ends the threads that are left, as the process ends, where they ask for the
    interpreter again. In a frame of C++ that may not be unwound this is
    `std::terminate`, and the process ends of a signal after all has gone well. So a
    thread of ours goes through such a door, which is shut before Python ends.
    """

    def __init__(self) -> None:
        self._inside = _thread.allocate_lock()
        self._shut = False
        self._pid = os.getpid()
        atexit.register(self.shut)

    def enter(self) -> bool:
        """Go in, if it is open; `leave` then, whatever happens."""
        self._inside.acquire()
        if self._shut:
            self._inside.release()
            return False
        return True

    def leave(self) -> None:
        """Come out."""
        self._inside.release()

    def shut(self, patience_s: float = LEAVES_IN_S) -> bool:
        """Let nobody in any more, and wait until who is inside has left; whether it
        has. A forked child has no such thread.
        """
        self._shut = True
        atexit.unregister(self.shut)
        if self._pid != os.getpid():
            return True
        left = self._inside.acquire(timeout=patience_s)
        if left:
            self._inside.release()
        return left


@contextlib.contextmanager
def unsignalled() -> Iterator[None]:
    """What is written in it, on a thread of the script's, raises where it fails; the
    script may have given those signals back their default action, which is the end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_WRITING)
    try:
        yield
    finally:
        ours = _OF_WRITING - before
        while ours & signal.sigpending():
            signal.sigtimedwait(ours, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
