"""Jobs on a modelled wire that tune themselves, in virtual time and in one thread.

What a rank's thread does is done where a pass begins, and the search where the process
beside the training would have done it: what is tried, and what is kept, is then the
same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsdpdoctor.cli.processes.rank_in_place import write_ranking
from fsdpdoctor.recorder.autotune import autotuner, start
from fsdpdoctor.recorder.autotune.autotuner import Autotuner, Setup
from fsdpdoctor.recorder.autotune.job_store import job_store
from fsdpdoctor.recorder.autotune.ranking import Ranking

LOOKS = 4
"""Of the thread, at each pass: a step of a tenth of a second has ten."""

LOOK_EVERY = 4
"""Passes between two looks of the search for enough steps."""


class Looking(Autotuner):
    """A tuning without a thread."""

    now: Looking  # the one that was made last

    def __init__(self, setup: Setup) -> None:
        """All ranks are this one: it agrees with nobody else."""
        store = job_store("", alone=True)
        super().__init__(replace(setup, store=store, world_size=1))
        Looking.now = self
        self.search: Search | None = None

    def pass_begins(self, root: Any) -> None:
        """First what the thread would have done since the last one."""
        if self.search is not None and self._pass % LOOK_EVERY == 0:
            self.search.look()
        if self._root is not None:
            for _ in range(LOOKS):
                if not self._voter.over:
                    self._look()
        super().pass_begins(root)

    @property
    def failed(self) -> bool:
        """Whether an error of ours was met."""
        return self._first.failed


Search = Any
Rank = Callable[[Path], Ranking | None]
"""Makes a ranking of a run's record; None: not yet."""


@contextmanager
def one_thread_tuning(rank: Rank) -> Iterator[None]:
    """Inside, a recording that tunes does all in the training's thread."""

    class Beside:
        def __init__(self, module: str, folder: Path) -> None:
            self.folder = folder
            self.done = False
            Looking.now.search = self

        def look(self) -> None:
            if self.done:
                return
            found = rank(self.folder)
            if found is not None:
                write_ranking(self.folder, found)
                self.done = True

        def close(self) -> None:
            self.done = True

    patch = pytest.MonkeyPatch()
    patch.setattr(start, "Autotuner", Looking)
    patch.setattr(start, "Beside", Beside)
    patch.setattr(autotuner, "start_thread", lambda run: None)
    patch.setattr(autotuner, "END_WITHIN_S", 0.0)
    try:
        yield
    finally:
        patch.undo()
