"""What was measured of the candidates, in the run's folder for who looks meanwhile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from fsdpdoctor.recorder.autotune.paired_test import Gain
from fsdpdoctor.recorder.autotune.ranking import Candidate

if TYPE_CHECKING:  # who looks at the run need not have torch
    from fsdpdoctor.recorder.autotune.step_lengths import Block

TRIALS = "autotune-trials.json"
"""In the run's folder; written anew after each round."""


class Fate(StrEnum):
    """What has become of a candidate."""

    ON_TRIAL = "on trial"
    KEPT = "kept"
    PUT_BACK = "put back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A candidate that ran for a round at least. Its step lies between low and high at
    the test's confidence.
    """

    summary: str
    bytes: int  # of memory, predicted, more than the script's own settings take
    predicted_ns: int
    measured_ns: int
    low_ns: int
    high_ns: int
    fate: Fate


def trial_of(
    candidate: Candidate, gain: Gain, blocks: Sequence[Block], fate: Fate
) -> Trial:
    """Its step, as a share of the steps that were not tried in the last round."""
    without_ns = median([ns for one in blocks if not one.tried for ns in one.ns])
    return Trial(
        summary=candidate.summary,
        bytes=candidate.bytes,
        predicted_ns=candidate.step_ns,
        measured_ns=round(without_ns * (1 - gain.share)),
        low_ns=round(without_ns * (1 - gain.high)),
        high_ns=round(without_ns * (1 - gain.low)),
        fate=fate,
    )


def save_trials(folder: Path, trials: Sequence[Trial]) -> None:
    """Whole or not at all. Raises OSError."""
    path = folder / TRIALS
    new = path.with_suffix(".new")
    new.write_text(json.dumps([asdict(one) for one in trials], indent=1) + "\n")
    new.replace(path)


def read_trials(folder: Path) -> tuple[Trial, ...]:
    """None of them where there is no file. Raises ValueError, OSError where it cannot
    be read.
    """
    path = folder / TRIALS
    if not path.exists():
        return ()
    try:
        return tuple(_trial(one) for one in json.loads(path.read_bytes()))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _trial(said: Any) -> Trial:
    return Trial(
        summary=str(said["summary"]),
        bytes=int(said["bytes"]),
        predicted_ns=int(said["predicted_ns"]),
        measured_ns=int(said["measured_ns"]),
        low_ns=int(said["low_ns"]),
        high_ns=int(said["high_ns"]),
        fate=Fate(said["fate"]),
    )
