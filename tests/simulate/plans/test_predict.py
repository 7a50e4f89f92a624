"""Predictions against what real FSDP2 then does, in virtual time.

A job is recorded and calibrated; each change is predicted from that one record,
then made for real and recorded.
"""

from __future__ import annotations

from itertools import combinations

import pytest

from fsdpdoctor.simulate.plans.predict import predict
from tests.simulate.jobs import APART, CHANGES, WIRES, base, measured

TOLERANCE = 0.001
"""Of the step: some ticks of the virtual clock. Two calls in the wrong order make
several percent."""


@pytest.mark.parametrize("wire", WIRES)
def test_the_replay_is_the_run(wire: float) -> None:
    """Step and exposed time, each within a thousandth of the step."""
    found = base(wire)

    assert abs(found.error) < 0.001
    assert max(abs(error) for error in found.lane_errors.values()) < 0.001


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", CHANGES)
def test_a_prediction_comes_true(wire: float, name: str) -> None:
    """The step within TOLERANCE, the peak of gathered parameters to the byte."""
    prediction = predict(base(wire), CHANGES[name].plan)
    step_ns, gathered = measured(wire, name)

    assert abs(prediction.step_ns / step_ns - 1) < TOLERANCE
    assert prediction.gathered_peak_bytes == gathered


@pytest.mark.parametrize("wire", WIRES)
def test_changes_are_ranked_as_they_turn_out(wire: float) -> None:
    """Of any two changes that differ, the faster one was predicted to be faster."""
    wrong = []
    for one, other in combinations(CHANGES, 2):
        a, b = measured(wire, one)[0], measured(wire, other)[0]
        if abs(a - b) <= APART * min(a, b):
            continue
        p, q = (predict(base(wire), CHANGES[n].plan).step_ns for n in (one, other))
        if (p < q) != (a < b):
            wrong.append((one, other))

    assert wrong == []
