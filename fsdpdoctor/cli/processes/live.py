"""`fsdpdoctor run --live`: the dashboard on the run in progress.

The dashboard is a process beside it, see [Note: Beside the training]. After the end it
stays for who still looks at it.
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

from fsdpdoctor.cli.processes.beside import begin_beside, fall_silent
from fsdpdoctor.cli.processes.leaving import leave
from fsdpdoctor.cli.view import NEEDS_DASH
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.open_paths import ReadOptions
from fsdpdoctor.recorder.launch.closing_words import short
from fsdpdoctor.recorder.launch.start_beside import Beside

if TYPE_CHECKING:
    from fsdpdoctor_dashboard.serve import Address
    from fsdpdoctor_dashboard.server.presence import Presence

LONGEST_MINUTES = 30
"""After the training's end it answers no longer, whoever looks."""

LOOK_S = 0.5
"""How often it is seen whether a page is still open, once the training has ended."""


class LiveView:
    """A dashboard that was started beside the training, until `close`."""

    def __init__(self, folder: Path) -> None:
        """Start it; where it cannot be, one line on stderr says so."""
        self._shown = shlex.quote(short(folder))
        self._beside: Beside | None = None
        if any(importlib.util.find_spec(name) is None for name in ("dash", "cheroot")):
            _say(f"no live view: {NEEDS_DASH}; the training goes on without it")
            return
        try:
            self._beside = Beside("fsdpdoctor.cli.processes.live", folder)
        except (OSError, subprocess.CalledProcessError) as error:
            _say(f"no live view: it could not be started ({error})")

    def close(self) -> None:
        """The training has ended: say how to look at it again."""
        if self._beside is None:
            return
        self._beside.close()
        self._beside = None
        _say(
            "the live view stays while its page is open, at most "
            f"{LONGEST_MINUTES} min; again with: fsdpdoctor view {self._shown}"
        )


def _say(words: str) -> None:
    click.echo(f"fsdpdoctor: {words}", err=True)


def show(folder: Path, pipe: int) -> None:
    """Serve a run from its first record on, until nobody holds the pipe's other end."""
    ended = begin_beside(folder, pipe)
    if ended is None:
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
    fall_silent()


if __name__ == "__main__":
    show(Path(sys.argv[1]), int(sys.argv[2]))
    leave()
