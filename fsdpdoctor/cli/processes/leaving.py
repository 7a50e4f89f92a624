"""The end of a process while threads of it are still at work."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn


def leave() -> NoReturn:
    """End with status 0, as Python ends, but for what it does to threads.

    It ends those that ask for the interpreter again. In a frame of C++ that may not be
    unwound, such as numpy's, this is `std::terminate`: the process ends of SIGABRT
    after all has gone well. Nothing is to be lost by not asking them.
    """
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)
