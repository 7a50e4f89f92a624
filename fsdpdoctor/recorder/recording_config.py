"""What a recording is told before it begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fsdpdoctor.recorder.storage.sampling import Sampling
from fsdpdoctor.recorder.storage.settings_log import SettingsLog


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingConfig:
    """What to record, and where to."""

    folder: Path
    run_id: str
    sampling: Sampling
    command: tuple[str, ...] = ()
    source: str = "recorded"
    notes: tuple[str, ...] = ()
    max_bytes: int | None = None  # of the record, of all ranks together
    settings: SettingsLog | None = None  # where a running job is given others
    hang_after_s: float = 0.0  # then a rank says where it is; 0: never
