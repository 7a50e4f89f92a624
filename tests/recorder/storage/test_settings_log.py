"""The record knows which steps ran under which settings."""

from __future__ import annotations

from fsdpdoctor.recorder.storage.sampling import DENSE_STEPS, EveryStep
from fsdpdoctor.recorder.storage.settings_log import SettingsLog, TunedSampling
from fsdpdoctor.schema import UNKNOWN, SettingsSpec


def test_no_step_of_a_trial_is_recorded() -> None:
    """After what was kept, more steps are than usual."""
    sampling = TunedSampling(EveryStep(100))
    assert [sampling.records(step) for step in (0, 1)] == [True, False]

    sampling.trying = True
    assert not sampling.records(100)
    sampling.trying = False
    sampling.changed()

    asked = [*range(101, 101 + DENSE_STEPS), *range(101 + DENSE_STEPS, 130)]
    assert [s for s in asked for _ in "twice" if sampling.records(s)][::5] == [
        *range(101, 101 + DENSE_STEPS)
    ]
    assert sampling.step == 129


def test_ranges_of_steps_are_kept_by_settings() -> None:
    """In order of their first step; what was never in force is not there."""
    log = SettingsLog()
    log.uses("a", 10, trial=True)
    log.uses("a", 11, trial=True)
    log.uses(None, 14)
    log.uses("b", 15, trial=True)
    log.uses("a", 15, trial=True)
    log.uses("a", 20)

    assert log.specs() == (
        SettingsSpec(words="a", trial=True, steps=((10, 14), (15, 20))),
        SettingsSpec(words="a", trial=False, steps=((20, UNKNOWN),)),
    )
