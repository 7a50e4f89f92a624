"""Advice with predictions: what the changes that detectors propose would give a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.changes.plan import plan_of
from fsdpdoctor.errors import FsdpDoctorError, UsageError
from fsdpdoctor.finding import Advice, Finding, Severity
from fsdpdoctor.run import Run
from fsdpdoctor.storage.json_value import replace

if TYPE_CHECKING:
    from fsdpdoctor.simulate.engine.step import Step
    from fsdpdoctor.simulate.plans.predict import Prediction, Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """Findings whose advice says what it gives, and how far that can be trusted."""

    findings: tuple[Finding, ...]
    replay_error: float | None = None  # signed share of the step; None: not replayed
    withheld: str | None = None  # why nothing is predicted, though it was asked for


def recommend(run: Run, m: Measures, findings: Sequence[Finding]) -> Advised:
    """Simulate each change that advice names, and put its gain beside it.

    The run is replayed once, and not at all where no advice names a change. What is
    expected to lose, or to win less than its own error, is no advice; in a finding,
    what wins most comes first. A warning that would be left without any has what is
    expected to win most, without a promise.
    """
    if not any(advice.change for finding in findings for advice in finding.advice):
        return Advised(findings=tuple(findings))
    # Imported where a change is simulated: many runs have nothing to gain.
    from fsdpdoctor.simulate.plans.forecast import replay_run

    try:
        base = replay_run(run, m)
    except FsdpDoctorError as error:
        return Advised(findings=tuple(findings), withheld=str(error))
    if not base.usable:
        return Advised(
            findings=tuple(findings),
            replay_error=base.error,
            withheld=base.why_withheld,
        )
    predictions = _Predictions(base=base)
    return Advised(
        findings=tuple(_finding(finding, predictions) for finding in findings),
        replay_error=base.error,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Predictions:
    """Each change is simulated once, however many findings propose it."""

    base: Replay
    known: dict[bytes, Prediction | None] = field(default_factory=dict)

    def of(self, advice: Advice) -> Prediction | None:
        """None where a change does not fit the run."""
        key = msgspec.json.encode(advice.change, order="sorted")
        if key not in self.known:
            self.known[key] = self._predict(advice)
        return self.known[key]

    def _predict(self, advice: Advice) -> Prediction | None:
        from fsdpdoctor.simulate.plans.predict import predict

        try:
            return predict(self.base, plan_of(advice.change))
        except UsageError:
            return None


def _finding(finding: Finding, predictions: _Predictions) -> Finding:
    advice = [
        worth
        for item in finding.advice
        if (worth := _worth(item, finding, predictions)) is not None
    ]
    advice.sort(key=lambda item: -(item.predicted_gain_ns or 0))
    if not advice and finding.severity != Severity.INFO:
        advice = _unsure(finding, predictions)
    return replace(finding, advice=tuple(advice))


def _unsure(finding: Finding, predictions: _Predictions) -> list[Advice]:
    """What may win, by less than the simulator can tell; none where nothing may."""
    gains = [
        (prediction.gain_ns, item)
        for item in finding.advice
        if (prediction := predictions.of(item)) is not None
        and prediction.forbidden is None
        and prediction.gain_ns > 0
    ]
    return [max(gains, key=lambda pair: pair[0])[1]] if gains else []


def _worth(
    advice: Advice, finding: Finding, predictions: _Predictions
) -> Advice | None:
    """Advice with its prediction; None where the simulator expects nothing of it.

    What saves memory may win no time, and where the finding is about memory alone
    it may cost some: that is its price.
    """
    prediction = None if advice.change is None else predictions.of(advice)
    if prediction is None:
        return advice
    if prediction.forbidden is not None:
        return None
    wins = prediction.gain_ns > prediction.error_ns - prediction.sooner_ns
    loses = prediction.gain_ns < -prediction.error_ns
    frees = prediction.memory_cost_bytes < 0 or (advice.memory_cost_bytes or 0) < 0
    about_memory = not finding.cost_ns_per_step and finding.cost_bytes is not None
    cures = frees or about_memory
    if not wins and not (cures and (not loses or (frees and about_memory))):
        return None
    if advice.memory_cost_bytes is not None:
        # The worse of the two: the simulated peak is FSDP2's own and leaves out
        # activations, under whose peak the detector's bound may add up in full.
        # Where the detector knew of a cost that it cannot measure, neither does.
        cost = max(advice.memory_cost_bytes, prediction.memory_cost_bytes)
        advice = replace(advice, memory_cost_bytes=cost)
    if not wins and not loses:
        return advice
    return replace(
        advice,
        predicted_gain_ns=prediction.gain_ns,
        predicted_error_ns=prediction.error_ns,
    )


Told = tuple[tuple["Step", int | None], ...]
"""Steps that advice makes, and what it says that each costs in memory."""


def told_costs(base: Replay, advice: Iterable[Advice]) -> Told:
    """What advice says that its changes cost each rank; None: it does not know."""
    found = []
    for one in advice:
        if one.change and (step := _changed(base, one)) is not None:
            found.append((step, one.memory_cost_bytes))
    return tuple(found)


def _changed(base: Replay, advice: Advice) -> Step | None:
    from fsdpdoctor.simulate.plans.change_step import changed

    calibration = base.calibration
    try:
        plan = plan_of(advice.change)
        return changed(plan, calibration.step, calibration.constraints).step
    except UsageError:
        return None


def memory_cost(told: Told, found: Prediction) -> int | None:
    """What a plan costs each rank at most, the same wherever it is said; None: not
    known.

    The simulated peak leaves out activations. Advice that makes the same step, in
    whatever words, knows what may add up in full under theirs, or that this is not
    known.
    """
    said = [cost for step, cost in told if step == found.step]
    known = [cost for cost in said if cost is not None]
    return None if len(known) < len(said) else max([found.memory_cost_bytes, *known])
