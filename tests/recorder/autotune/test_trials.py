"""What was measured is left for who looks at the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.recorder.autotune.paired_test import Gain
from fsdpdoctor.recorder.autotune.step_lengths import Block
from fsdpdoctor.recorder.autotune.trials import (
    TRIALS,
    Fate,
    Trial,
    read_trials,
    save_trials,
    trial_of,
)
from tests.recorder.autotune.test_tuning import candidate

GAIN = Gain(share=0.2, low=0.1, high=0.3)
BLOCKS = [Block(False, [900.0, 1000.0]), Block(True, [1.0]), Block(False, [5000.0])]


def test_a_trial_is_measured_against_the_steps_beside_it() -> None:
    """A fifth less than their median; between a tenth less and three tenths."""
    assert trial_of(candidate("lists", 700), GAIN, BLOCKS, Fate.KEPT) == Trial(
        summary="lists",
        bytes=0,
        predicted_ns=700,
        measured_ns=800,
        low_ns=700,
        high_ns=900,
        fate=Fate.KEPT,
    )


def test_trials_survive_their_file(tmp_path: Path) -> None:
    """Without a file there are none; a damaged one is not believed."""
    assert read_trials(tmp_path) == ()
    made = [
        trial_of(candidate(name, 700), GAIN, BLOCKS, fate)
        for name, fate in (("lists", Fate.PUT_BACK), ("both", Fate.ON_TRIAL))
    ]
    save_trials(tmp_path, made)

    assert read_trials(tmp_path) == tuple(made)

    for said in ("{", "[{}]", '[{"summary": 1}]', "3"):
        (tmp_path / TRIALS).write_text(said)
        with pytest.raises(ValueError, match=r"\S"):
            read_trials(tmp_path)
