"""The recording of one script: when it begins, and what hears of its end meanwhile."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from os import getpid  # kept: a script may put its own in place of it
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpdoctor import recorder
from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.launch.early_variables import once_imported
from fsdpdoctor.recorder.launch.fatal_signals import FatalSignals
from fsdpdoctor.recorder.launch.sigterm import SigtermHandler
from fsdpdoctor.recorder.storage import run_folder

if TYPE_CHECKING:
    from fsdpdoctor.recorder.recording_config import RecordingConfig
    from fsdpdoctor.recorder.session import Session


class ScriptRecording:
    """Of this process, not of its forked children."""

    def __init__(self, folder: Path, config: RecordingConfig | None) -> None:
        self._folder = folder
        self._config = config  # None: nothing is recorded
        self._pid = getpid()
        self._watch: SigtermHandler | None = None
        self._fatal = FatalSignals(folder, run_folder.number("RANK", 0))
        self.session: Session | None = None

    def begin(self) -> None:
        """Record from here on; once."""
        if self._config is None or getpid() != self._pid:
            return
        config, self._config = self._config, None
        session = self.session = recorder.start(config)
        if session is None:
            return
        self._watch = SigtermHandler(session.say_ended, lambda: session.noting.busy)
        self._watch.start()
        self._fatal.start()
        if run_folder.number("LOCAL_RANK", 0) == 0:
            run_folder.point_latest(self._folder)

    @contextlib.contextmanager
    def with_torch(self) -> Iterator[None]:
        """Begin once the script has imported torch, or at its end."""
        if "torch" in sys.modules:
            self.begin()
            yield
            return
        with once_imported("torch", self._torch_is_there):
            try:
                yield
            except KeyboardInterrupt:
                raise
            except BaseException:
                border.last_words(self.begin)
                raise
            border.last_words(self.begin)

    def _torch_is_there(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self.begin()

    def end(self, ended: str, error: BaseException | None) -> None:
        """Nothing is recorded any more; of which nothing may come through."""
        border.last_words(lambda: recorder.stop(ended, error))
        # Last: a launcher's SIGTERM may come while the end is written down.
        if self._watch is not None:
            border.last_words(self._watch.stop)
        border.last_words(self._fatal.stop)
