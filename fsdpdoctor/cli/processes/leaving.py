"""The end of a process: while threads of it are at work, or of an interrupt."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from typing import NoReturn, TextIO


def leave(status: int = 0) -> NoReturn:
    """End with a status, as Python ends, but for what it does to threads.

    It ends those that ask for the interpreter again. In a frame of C++ that may not be
    unwound, such as numpy's, this is `std::terminate`: the process ends of SIGABRT
    after all has gone well. Nothing is to be lost by not asking them.
    """
    _clear_away()
    os._exit(status & 0xFF)


def let_go_of(stream: TextIO) -> None:
    """What is left in its buffer, and what is still said to it, goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def reraise_sigint() -> NoReturn:  # untraced: the process ends in it
    """End as Python ends on an interrupt that nobody caught: of the signal."""
    _clear_away()
    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)
    raise SystemExit(128 + signal.SIGINT)  # the signal is blocked


def _clear_away() -> None:
    """What Python does first, as it ends."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
