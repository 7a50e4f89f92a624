"""A process beside the training, that is none of its children.

[Note: Beside the training] It has a session of its own, nothing of the job's
environment and the lowest priority. It is no child of the rank that starts it: a script
that waits for its children never meets it. Between the two is only a pipe that the rank
keeps open; its end, however it comes, is the training's end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from fsdpdoctor.cli.processes.leaving import let_go_of
from fsdpdoctor.run import RUN

POLL_S = 0.1
LOWEST_PRIORITY = 19


def begin_beside(folder: Path, pipe: int) -> threading.Event | None:
    """In the process itself: wait for the run's first record. The event is set when
    nobody holds the pipe's other end any more; None where that comes first.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` ignores it
    os.nice(LOWEST_PRIORITY)
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(pipe, ended), daemon=True).start()
    while not (folder / RUN).is_file():
        if ended.wait(POLL_S):
            return None
    return ended


def _wait_for_end(pipe: int, ended: threading.Event) -> None:
    os.read(pipe, 1)
    ended.set()


def fall_silent() -> None:
    """Who reads the job's stderr to its end must not wait for this process."""
    sys.stderr.flush()
    let_go_of(sys.stderr)
