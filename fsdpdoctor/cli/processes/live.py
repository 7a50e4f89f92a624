"""`fsdpdoctor run --live`: the dashboard on the run in progress.

[Note: Beside the training] The dashboard is a process of its own, in a session of its
own, with nothing of the job's environment and the lowest priority. It is no child of
the rank that starts it: a script that waits for its children never meets it. Between
the two is only a pipe that the rank keeps open; its end, however it comes, is the
training's end. The dashboard then stays for who still looks at it.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpdoctor.cli.view import NEEDS_DASH
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.open_paths import ReadOptions
from fsdpdoctor.recorder.launch.closing_words import short
from fsdpdoctor.run import is_run_folder

if TYPE_CHECKING:
    from fsdpdoctor_dashboard.serve import Address
    from fsdpdoctor_dashboard.server.presence import Presence

LONGEST_MINUTES = 30
"""After the training's end it answers no longer, whoever looks."""

LOOK_S = 0.5
"""How often it is seen whether a page is still open, once the training has ended."""

POLL_S = 0.1
LOWEST_PRIORITY = 19

_OF_THE_JOB = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCH")
"""How variables begin that say what a rank is. The dashboard is none."""


class LiveView:
    """A dashboard that was started beside the training, until `close`."""

    def __init__(self, folder: Path) -> None:
        """Start it; where it cannot be, one line on stderr says so."""
        self._shown = shlex.quote(short(folder))
        self._pipe: int | None = None
        if any(importlib.util.find_spec(name) is None for name in ("dash", "waitress")):
            _say(f"no live view: {NEEDS_DASH}; the training goes on without it")
            return
        there, self._pipe = os.pipe()
        command = [sys.executable, "-m", "fsdpdoctor.cli.processes.live", str(folder)]
        kept = {n: v for n, v in os.environ.items() if not n.startswith(_OF_THE_JOB)}
        try:
            # The shell ends at once, and leaves what it started to the system.
            subprocess.run(
                ["/bin/sh", "-c", '"$@" &', "sh", *command, str(there)],
                check=True,
                env=kept,
                pass_fds=(there,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            _say(f"no live view: it could not be started ({error})")
            os.close(self._pipe)
            self._pipe = None
        finally:
            os.close(there)

    def close(self) -> None:
        """The training has ended: say how to look at it again."""
        if self._pipe is None:
            return
        os.close(self._pipe)
        self._pipe = None
        _say(
            "the live view stays while its page is open, at most "
            f"{LONGEST_MINUTES} min; again with: fsdpdoctor view {self._shown}"
        )


def _say(words: str) -> None:
    click.echo(f"fsdpdoctor: {words}", err=True)


def show(folder: Path, pipe: int) -> None:
    """Serve a run from its first record on, until nobody holds the pipe's other end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` ignores it
    os.nice(LOWEST_PRIORITY)
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(pipe, ended), daemon=True).start()
    while not is_run_folder(folder):
        if ended.wait(POLL_S):
            return
    try:
        from fsdpdoctor_dashboard.serve import serve
        from fsdpdoctor_dashboard.server.presence import Presence

        presence = Presence(LONGEST_MINUTES * 60)
        threading.Thread(target=_stay, args=(ended, presence), daemon=True).start()
        how = ReadOptions(cache=False)
        serve([folder], announce=_announce, how=how, presence=presence)
    except (FsdpDoctorError, ImportError) as error:
        _say(f"no live view: {error}")


def _wait_for_end(pipe: int, ended: threading.Event) -> None:
    os.read(pipe, 1)
    ended.set()


def _stay(ended: threading.Event, presence: Presence) -> None:
    """Stop the server when nobody looks at what has ended."""
    ended.wait()
    presence.end()
    while presence.stays:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGINT)  # what stops a server


def _announce(address: Address) -> None:
    _say(f"live at {address.url} until the training ends")
    _say(f"from another machine: {address.tunnel}")
    # Who reads the job's stderr to its end must not wait for this process.
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


if __name__ == "__main__":
    show(Path(sys.argv[1]), int(sys.argv[2]))
