"""Predictions against what real FSDP2 then does, in virtual time.

A job is recorded and calibrated; each change is predicted from that one record,
then made for real and recorded.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.simulate.calibration.calibrate import calibrate
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor.simulate.plans.predict import (
    MIN_ERROR,
    SLOWED,
    Replay,
    predict,
    replay,
)
from tests.simulate.jobs import APART, CHANGES, WIRES, base, measured
from tests.simulate.steps import step

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


def one_size(root: bool) -> Replay:
    """A run of four layers of one size, with a root of another or without one."""
    made = step(max_input_buffers=1)
    if not root:
        units = (replace(made.units[0], params=made.units[1].params), *made.units[1:])
        made = replace(made, units=units)
    return replay(calibrate(record(made)))


def test_a_guessed_latency_belongs_into_the_error() -> None:
    """Collectives of one size cannot tell latency from bandwidth: two layers merged
    may take anything between, and the replay, which is exact, cannot see it.
    """
    plan = Plan(merge=2)
    known, guessed = one_size(root=True), one_size(root=False)

    assert guessed.calibration.fits["all_gather"].sizes == 1
    told = predict(known, plan)
    # Beside what collectives may slow of the compute that they run beside.
    hidden_ns = replay(replace(known.calibration, step=told.step)).hidden_ns
    assert told.error_ns == round(MIN_ERROR * known.calibration.measured_ns) + round(
        SLOWED * abs(hidden_ns - known.hidden_ns)
    )
    assert predict(guessed, plan).error_ns > 2 * MIN_ERROR * (
        guessed.calibration.measured_ns
    )


def test_the_error_grows_with_the_step() -> None:
    """A plan that makes the step longer is off by the same share of more."""
    base = one_size(root=True)
    slower = predict(base, Plan(micro_batches=4))

    assert slower.step_ns > base.calibration.measured_ns
    assert slower.error_ns >= round(MIN_ERROR * slower.step_ns)


def test_a_replay_that_is_far_off_withholds_its_predictions() -> None:
    """A tenth is the limit, in both directions; the sentence has both times."""
    found = base(WIRES[0])
    measured_ns = found.calibration.measured_ns
    slow = replace(found, error=0.11)

    assert found.usable
    assert [replace(found, error=e).usable for e in (-0.11, -0.1, 0.1)] == [
        False,
        True,
        True,
    ]
    assert slow.why_withheld.startswith(
        f"the replay of this run is off by +11.0 % ({found.outcome.step_ns / 1e6:.1f} "
        f"ms against {measured_ns / 1e6:.1f} ms measured), more than 10%"
    )
