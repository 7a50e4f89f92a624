"""Leaves the stack of a rank that a fatal signal ends (SIGABRT, SIGSEGV, SIGBUS ...).

CPython's own handler writes it, restores what was there before and lets the signal end
the process, so that its exit status is the same. Who has set that handler up
already keeps it, and forked children write nothing into a rank's file. A script that
asks whether it is set up is told what it was without us, and sets it up as it likes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
from pathlib import Path
from typing import IO, Any

from fsdpdoctor.rank_end import FATAL_SUFFIX
from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.run_writer import open_file
from fsdpdoctor.schema import rank_stem


class FatalSignals:
    """While it lasts, a fatal signal leaves the stack in a rank's file."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = (folder / rank_stem(rank)).with_suffix(FATAL_SUFFIX)
        self._file: IO[bytes] | None = None
        self._patches = Patches()

    def start(self) -> bool:
        """Begin; False where somebody else does so, or no file can be made."""
        if faulthandler.is_enabled():
            return False
        try:
            file = os.fdopen(border.raised(open_file(self._path)), "wb")
        except OSError:
            return False
        self._file = file
        faulthandler.enable(file, all_threads=True)
        self._hide()
        os.register_at_fork(after_in_child=self._mute)
        return True

    def _hide(self) -> None:
        """To the process's end, or until the script has the handler."""

        def handed_over(real: Any) -> Any:
            @functools.wraps(real)
            def call(*args: Any, **kwargs: Any) -> Any:
                self._patches.undo()
                done = real(*args, **kwargs)
                return False if real is disable else done

            return call

        disable = faulthandler.disable
        self._patches.put(faulthandler, "enable", handed_over(faulthandler.enable))
        self._patches.put(faulthandler, "disable", handed_over(disable))
        self._patches.put(faulthandler, "is_enabled", lambda: False)

    def stop(self) -> None:
        """Leave no file where nothing is in it. The handler stays to the process's end:
        nobody can tell whether the script has made it its own meanwhile.
        """
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            if self._path.stat().st_size == 0:
                self._path.unlink()

    def _mute(self) -> None:
        # The handler stays, and with it how a child ends; its words go nowhere.
        if self._file is None:
            return
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)
