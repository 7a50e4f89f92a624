"""Judged steps: their mean, and tables of them."""

from __future__ import annotations

import numpy as np
import pytest

from fsdpdoctor.detectors.base import CannotTell
from fsdpdoctor.detectors.judged_steps import few_steps, rows_by_step, steady
from fsdpdoctor.quantities import MS
from fsdpdoctor.testing import draw, measured


def test_rows_by_step_are_ascending_in_each() -> None:
    """Of an empty table there are none."""
    found = rows_by_step(np.array([5, 3, 5, 9, 3]))

    assert {step: rows.tolist() for step, rows in found.items()} == {
        3: [1, 4],
        5: [0, 2],
        9: [3],
    }
    assert rows_by_step(np.empty(0, dtype=np.int64)) == {}


def test_a_rank_that_breaks_off_leaves_the_others_their_mean() -> None:
    """Rank 1 has two steps, which are warm-up: rank 0's six are judged."""
    whole = draw("forward 0000", first_step=0, steps=9)
    m = measured(whole, draw("forward 00", rank=1, first_step=0, steps=2))

    assert steady(m) == 4 * MS
    assert not few_steps(m)


def test_too_few_steps_of_every_rank() -> None:
    """It says how many the longest has."""
    ranks = (draw("forward 0000", rank=rank, steps=rank + 1) for rank in range(2))

    with pytest.raises(CannotTell, match="2 judged steps on a rank, at least 3"):
        steady(measured(*ranks))
