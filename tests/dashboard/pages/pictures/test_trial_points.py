"""What a tuning has measured stands on what was predicted for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.quantities import MS
from fsdpdoctor.recorder.autotune.paired_test import Gain
from fsdpdoctor.recorder.autotune.ranking import Ranking
from fsdpdoctor.recorder.autotune.step_lengths import Block
from fsdpdoctor.recorder.autotune.trials import Fate, trial_of
from fsdpdoctor.renderers.reading.unit_names import UnitNames
from fsdpdoctor_dashboard.pages.pictures.plan_front import MIB
from fsdpdoctor_dashboard.pages.pictures.trial_points import trial_points
from tests.recorder.autotune.test_tuning import candidate

LISTS = candidate("lists", 80 * MS)
BOTH = replace(candidate("both", 70 * MS), bytes=8 * MIB)
RANKED = Ranking(measured_ns=100 * MS, candidates=(BOTH, LISTS))
GAIN = Gain(share=0.25, low=0.2, high=0.35)
BLOCKS = [Block(False, [100.0 * MS])]
TRIED = [
    trial_of(BOTH, GAIN, BLOCKS, Fate.PUT_BACK),
    trial_of(LISTS, GAIN, BLOCKS, Fate.KEPT),
]


def test_measured_points_stand_on_the_predicted_front() -> None:
    """Each where its memory is, with its bounds; only what there is has a legend."""
    figure = trial_points(RANKED, TRIED, "light", UnitNames())
    line, predicted, kept, back = figure.data

    assert (list(line.x), list(line.y)) == ([0, 8], [80, 70])
    assert (list(predicted.x), list(predicted.y)) == ([0, 8, 0], [100, 70, 80])
    assert (kept.name, back.name) == ("measured: kept", "measured: put back")
    assert (list(kept.x), list(kept.y)) == ([0], [75])
    assert (list(kept.error_y.array), list(kept.error_y.arrayminus)) == ([5], [10])
    assert (list(back.x), list(back.y)) == ([8], [75])
