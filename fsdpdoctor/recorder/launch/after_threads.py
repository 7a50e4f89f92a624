"""What is done once the script has ended, and with it all that it has begun.

A training may go on in a thread when the script's last line has run: Python waits for
threads that are no daemons before it ends the process. So do we.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from os import getpid  # kept: a script may put its own in place of it

from fsdpdoctor.recorder import border

Act = Callable[[], object]


class AfterThreads:
    """Does what it is told in its order: at once, or after threads that go on."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits  # False: whoever goes on, it is done at once
        self._pid = getpid()
        self._acts: list[Act] = []

    def do(self, act: Act) -> None:
        """Of which nothing may come through."""
        if not self._acts and not (self._waits and _threads_go_on()):
            border.last_words(act)
            return
        if not self._acts:
            # Of what is called at the end the last that came is the first, so that it
            # is before the script's own; and Python has waited by then.
            atexit.register(self._all)
        self._acts.append(act)

    def _all(self) -> None:
        if getpid() != self._pid:
            return  # a child that such a thread has forked
        for act in self._acts:
            border.last_words(act)


def _threads_go_on() -> bool:
    """Those that Python waits for."""
    here = threading.current_thread()
    return any(one is not here and not one.daemon for one in threading.enumerate())
