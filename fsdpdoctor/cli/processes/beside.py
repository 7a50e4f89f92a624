"""A process beside the training, that is none of its children.

[Note: Beside the training] It has a session of its own, nothing of the job's
environment and the lowest priority. It is no child of the rank that starts it: a script
that waits for its children never meets it. Between the two is only a pipe that the rank
keeps open; its end, however it comes, is the training's end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from fsdpdoctor.run import is_run_folder

POLL_S = 0.1
LOWEST_PRIORITY = 19

_OF_THE_JOB = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCH")
"""How variables begin that say what a rank is. What is started is none."""


class Beside:
    """A module that runs beside the training until `close`; it is given the run's
    folder, the pipe's descriptor and further arguments.
    """

    def __init__(self, module: str, folder: Path, *arguments: str) -> None:
        """Start it. Raises OSError, or CalledProcessError."""
        there, self._pipe = os.pipe()
        command = [sys.executable, "-m", module, str(folder), str(there), *arguments]
        kept = {n: v for n, v in os.environ.items() if not n.startswith(_OF_THE_JOB)}
        try:
            # The shell ends at once, and leaves what it started to the system.
            subprocess.run(
                ["/bin/sh", "-c", '"$@" &', "sh", *command],
                check=True,
                env=kept,
                pass_fds=(there,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, subprocess.CalledProcessError):
            os.close(self._pipe)
            raise
        finally:
            os.close(there)

    def close(self) -> None:
        """The training has ended."""
        os.close(self._pipe)


def begin_beside(folder: Path, pipe: int) -> threading.Event | None:
    """In the process itself: wait for the run's first record. The event is set when
    nobody holds the pipe's other end any more; None where that comes first.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` ignores it
    os.nice(LOWEST_PRIORITY)
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(pipe, ended), daemon=True).start()
    while not is_run_folder(folder):
        if ended.wait(POLL_S):
            return None
    return ended


def _wait_for_end(pipe: int, ended: threading.Event) -> None:
    os.read(pipe, 1)
    ended.set()


def fall_silent() -> None:
    """Who reads the job's stderr to its end must not wait for this process."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
