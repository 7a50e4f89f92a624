"""Threads of ours, and writes of ours, of which no signal of the script's hears.

The kernel gives a signal that is sent to the process to any thread that does not block
it. A script that blocks one, to wait for it, would get it as without us only where our
threads block it, too. They are none of `threading`'s, which a script may count or join.
"""

from __future__ import annotations

import _thread
import contextlib
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


def start_thread(run: Callable[..., None], *args: object) -> None:
    """Start it with all signals blocked. Raises RuntimeError where none can be had."""
    blocked = signal.valid_signals() - _OF_AN_ERROR
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        _thread.start_new_thread(run, args)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
