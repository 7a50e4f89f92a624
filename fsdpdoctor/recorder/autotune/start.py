"""Puts an autotuner beside a recording, and a process that searches beside both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.autotune.autotuner import Autotuner, Setup
from fsdpdoctor.recorder.autotune.earlier_plan import kept_before
from fsdpdoctor.recorder.autotune.job_store import job_store
from fsdpdoctor.recorder.autotune.ranking import MODULE
from fsdpdoctor.recorder.launch.start_beside import Beside
from fsdpdoctor.recorder.rank_header import place
from fsdpdoctor.recorder.recording_config import RecordingConfig
from fsdpdoctor.recorder.storage.settings_log import SettingsLog, TunedSampling


def tuned(plan: RecordingConfig) -> RecordingConfig:
    """The same recording, of a job that is autotuned."""
    return replace(plan, sampling=TunedSampling(plan.sampling), settings=SettingsLog())


@contextmanager
def autotuning(plan: RecordingConfig, minutes: float) -> Iterator[None]:
    """While it is open the job is tuned, of which a recording as `tuned` says has
    begun. What cannot be had is said; the training goes on without it.
    """
    tuner = beside = None
    try:
        tuner = _autotuner(plan, minutes)
        if tuner.searches:
            beside = Beside(MODULE, plan.folder)
        tuner.attach()
    except Exception as error:
        border.say(f"fsdpdoctor: not tuned: {border.describe(error)}")
    try:
        yield
    finally:
        for end in (one.close for one in (tuner, beside) if one is not None):
            border.last_words(end)


def _autotuner(plan: RecordingConfig, minutes: float) -> Autotuner:
    assert plan.settings is not None
    assert isinstance(plan.sampling, TunedSampling)
    rank, world_size = place()
    alone = world_size == 1 or plan.source == "rehearsal"  # of it there is one rank
    return Autotuner(
        Setup(
            folder=plan.folder,
            store=job_store(plan.run_id, alone=alone),
            rank=rank,
            world_size=1 if alone else world_size,
            sampling=plan.sampling,
            log=plan.settings,
            minutes=minutes or None,
            before=kept_before(plan.folder, world_size) if rank == 0 else None,
        )
    )
