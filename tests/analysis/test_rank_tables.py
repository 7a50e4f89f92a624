"""Figures are of one setting each."""

from __future__ import annotations

import numpy as np

from fsdpdoctor.analysis.rank_tables import Steps, under_last_settings
from fsdpdoctor.schema import UNKNOWN, SettingsSpec


def judged(settings: tuple[SettingsSpec, ...], count: int = 30) -> list[int]:
    """Which of some steps, all of them whole."""
    steps = Steps.build(count, step=np.arange(count), complete=1)
    return np.flatnonzero(under_last_settings(steps, settings, 6)).tolist()


def spec(trial: bool, *steps: tuple[int, int]) -> SettingsSpec:
    """Settings that were in force."""
    return SettingsSpec(words="a", trial=trial, steps=steps)


def test_without_settings_all_steps_count() -> None:
    """A run that was not tuned."""
    assert judged(()) == [*range(30)]


def test_trials_never_count() -> None:
    """Nothing was kept."""
    assert judged((spec(True, (5, 8), (10, 29)),)) == [0, 1, 2, 3, 4, 8, 9, 29]


def test_what_was_kept_last_counts() -> None:
    """But for its first step; a trial in it does not."""
    settings = (spec(False, (10, UNKNOWN)), spec(True, (20, 22)))
    assert judged(settings) == [*range(11, 20), *range(22, 30)]


def test_too_few_steps_under_the_last_leave_those_before() -> None:
    """Six are needed, three of them for warm-up."""
    assert judged((spec(False, (25, UNKNOWN)),)) == [*range(1, 25)]
