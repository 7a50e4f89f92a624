"""Starts a process beside the training: one side of what `cli.processes.beside` tells,
which is the process's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fsdpdoctor.recorder import border

_OF_THE_JOB = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCH")
"""How variables begin that say what a rank is. What is started is none."""


class Beside:
    """A module that runs beside the training until `close`; it is given the run's
    folder, the pipe's descriptor and further arguments.
    """

    def __init__(self, module: str, folder: Path, *arguments: str) -> None:
        """Start it. Raises OSError, or CalledProcessError."""
        there, pipe = os.pipe()
        self._pipe = border.raised(pipe)
        self._identity = border.identity(self._pipe)
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
        if border.identity(self._pipe) == self._identity:
            os.close(self._pipe)
