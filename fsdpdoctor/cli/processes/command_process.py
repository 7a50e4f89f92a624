"""A process that runs one command of ours, and ends with it."""

from __future__ import annotations

import sys

from fsdpdoctor.cli import main
from fsdpdoctor.cli.processes.leaving import leave


def run_command() -> None:
    """Run the command that the command line says. Raises SystemExit, or ends."""
    try:
        main()
    except SystemExit as end:
        _leave_early(end)
        raise


def _leave_early(end: SystemExit) -> None:
    """End the process before Python takes apart what it imported and made, whose memory
    the system takes back as well: a thirtieth of an `analyze` of half a second.

    A process in which a script of the user's ran ends as Python has it end.
    """
    status = 0 if end.code is None else end.code
    if main.ran_script or not isinstance(status, int):
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return  # what was written is lost, which Python's status says
    leave(status)
