"""What came of it: said, and left in the run's folder as a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fsdpdoctor.quantities import count, duration, percent
from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.autotune.earlier_plan import PLAN, save_kept
from fsdpdoctor.recorder.autotune.ranking import Candidate
from fsdpdoctor.recorder.autotune.tuning import Tuning, gain_words

STORE_WITHIN_S = 30.0
"""A store that has not answered for so long is said to be gone, once."""


class Outcome:
    """Rank 0 says it; other ranks' `say` says nothing."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._began = time.monotonic()
        self._answered = self._began
        self._store_said = False
        self._over_said = False
        self._last: Candidate | None = None  # that was kept, now or before a restart

    # The store

    def store_answers(self) -> None:
        """It has, just now."""
        self._answered = time.monotonic()

    def store_fails(self, error: Exception) -> None:
        """It has not."""
        silent_s = time.monotonic() - self._answered
        if silent_s > STORE_WITHIN_S and not self._store_said:
            self._store_said = True
            self._say(
                "ranks cannot agree on anything, the job's store does not answer: "
                f"{border.describe(error)}"
            )

    # The end

    def over(self, tuning: Tuning, others: Sequence[str]) -> None:
        """Nothing more is tried; `others` need a new start."""
        if self._over_said:
            return
        self._over_said = True
        self._say(f"over: {tuning.stopped}; {self._sum(tuning)}")
        for other in others:
            self._say(f"with a new start, untried: {other}")

    def close(self, tuning: Tuning | None, retired: str | None) -> None:
        """The training has ended."""
        if retired is not None:
            self._say(f"ended early: {retired}")
        if tuning is None:
            if retired is None:
                self._say("nothing was tried: the training ended too early")
            return
        if not self._over_said and tuning.stopped is None:
            self._say(f"not over when the training ended; {self._sum(tuning)}")
        last = tuning.kept[-1].candidate if tuning.kept else self._last
        if last is None:
            return
        if last.code:
            self._say(f"in your script:\n{last.code.rstrip()}")
        self._say(f"or: fsdpdoctor run --apply {self._folder / PLAN} ...")

    def _sum(self, tuning: Tuning) -> str:
        spent = duration((time.monotonic() - self._began) * 1e9)
        tried = f"{count(tuning.steps_tried, 'step')} under trial, {spent}"
        if not tuning.kept and self._last is not None:
            return f"in force as before the restart: {self._last.summary} ({tried})"
        if not tuning.kept:
            return f"nothing was kept ({tried})"
        share = tuning.gain_share
        saved = percent(share / (1 - share))
        kept = tuning.kept[-1]
        return (
            f"kept {kept.candidate.summary}: {gain_words(kept.gain)}; from here on "
            f"{saved} more steps in the same time ({tried})"
        )

    def kept(self, candidate: Candidate) -> None:
        """It is in force from now on; a restart by the launcher finds it."""
        self._last = candidate
        try:
            save_kept(self._folder, candidate)
        except OSError as error:
            self._say(f"the plan is not written: {error}")
