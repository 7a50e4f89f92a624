"""Rehearsals in virtual time, in this process.

Real FSDP2, the real recorder, the modelled wire: only the clock is virtual (see
`tests.rig.virtual`), so that a case has the same figures wherever it is recorded.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import torch

from fsdpdoctor import recorder
from fsdpdoctor.network import parse_network
from fsdpdoctor.recorder import session  # noqa: F401 - before time is virtual
from fsdpdoctor.recorder.recording_config import RecordingConfig
from fsdpdoctor.recorder.storage.sampling import sampling_of
from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing
from tests.rig.fake import one_thread
from tests.rig.virtual import virtual_time


def rehearse(
    train: Callable[[], None],
    folder: Path,
    *,
    command: tuple[str, ...],
    bandwidth: str,
    world_size: int,
    steps: str,
) -> None:
    """Record some training into a folder, as `fsdpdoctor rehearse` would."""
    job = Rehearsal(wire=parse_network(bandwidth), world_size=world_size)
    plan = RecordingConfig(
        folder=folder,
        run_id=folder.name,
        sampling=sampling_of(steps, None),
        command=command,
        source="rehearsal",
        notes=(job.note, "time is virtual: only sleeps and the wire take any"),
    )
    torch.manual_seed(0)
    gc.disable()
    try:
        with one_thread(), virtual_time(), rehearsing(job):
            recorder.start(plan)
            try:
                train()
            finally:
                recorder.stop()
    finally:
        gc.enable()
