"""Advice with predictions: the gains are those of `whatif`, or they are not there."""

from __future__ import annotations

import msgspec
import pytest

from fsdpdoctor.advice import Told, memory_cost, recommend, told_costs
from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.changes.plan import ALL, Plan, plan_of
from fsdpdoctor.detectors import judge_all
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.renderers.report_view import content_of
from fsdpdoctor.report import report_of
from fsdpdoctor.report.diagnosis import report_from
from fsdpdoctor.run import RankData, Run, in_memory
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.simulate.calibration.calibrate import calibrate
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor.simulate.plans import predict as predictions
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.forecast import replay_run
from fsdpdoctor.simulate.plans.predict import Prediction, predict
from tests.detectors.test_advice_runs import DRAWN
from tests.rig.changed import replace
from tests.simulate.steps import step


def run_of(data: RankData) -> Run:
    """A run of one rank, of a torch that has every method."""
    header = RunHeader(
        run_id="r", source="simulated", world_size=8, device=data.header.device
    )
    return in_memory(header, [data])


def simulated(*, blocking: bool = True) -> Run:
    """Four blocks whose gathers take longer than their compute; replayed exactly."""
    return run_of(record(step(4, blocking=blocking)))


def finding(*advice: Advice) -> Finding:
    """A finding with some advice."""
    return Finding(
        code="FD101",
        name="exposed-all-gather",
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        summary="it waits",
        advice=advice,
    )


def advice(**change: object) -> Advice:
    """Advice that makes one change, with a bound of its own for the memory."""
    return Advice(text="do", memory_cost_bytes=1, change=change)


@pytest.mark.parametrize("case", DRAWN)
def test_every_change_applies_to_the_run_it_is_advised_for(case: str) -> None:
    """What detectors say in plain data is a plan that fits the run's own units."""
    data = DRAWN[case]
    run = run_of(data)
    findings, _ = judge_all(measure(run))
    changes = [a.change for f in findings for a in f.advice if a.change]
    calibration = calibrate(data) if changes else None

    for change in changes:
        assert calibration is not None
        plan = plan_of(change)
        assert plan.changes == change
        changed(plan, calibration.step, calibration.constraints)


def test_the_drawn_runs_are_advised_every_kind_of_change() -> None:
    """No change that a detector names goes untested above."""
    seen: set[str] = set()
    for data in DRAWN.values():
        findings, _ = judge_all(measure(run_of(data)))
        for change in (a.change for f in findings for a in f.advice if a.change):
            seen |= set(change)

    assert seen == {
        "accumulation",
        "forward_prefetch",
        "forward_prefetch_of",
        "backward_prefetch",
        "max_input_buffers",
        "merge",
        "param_dtype",
        "reduce_dtype",
        "reshard_after_forward",
        "separate_reduce_scatter_group",
        "split_root",
        "unshard_async_op",
        "wrap",
    }


def test_a_gain_is_that_of_whatif() -> None:
    """Gain, error and memory of the same plan; the best advice of a finding first."""
    run = simulated()
    m = measure(run)
    prefetched: dict[str, object] = {"unshard_async_op": True, "forward_prefetch": 1}
    kept: dict[str, object] = {"reshard_after_forward": {"layers.3": False}}
    plain = Advice(text="a larger batch")
    base = replay_run(run, m)
    best = predict(base, Plan(unshard_async_op=True, forward_prefetch=1))
    other = predict(base, Plan(reshard_after_forward={"layers.3": False}))

    advised = recommend(run, m, [finding(plain, advice(**kept), advice(**prefetched))])

    assert advised.withheld is None
    assert advised.replay_error == 0.0
    assert best.gain_ns > other.gain_ns > other.error_ns
    assert advised.findings[0].advice == (
        replace(
            advice(**prefetched),
            predicted_gain_ns=best.gain_ns,
            predicted_error_ns=best.error_ns,
            memory_cost_bytes=max(1, best.memory_cost_bytes),
        ),
        replace(
            advice(**kept),
            predicted_gain_ns=other.gain_ns,
            predicted_error_ns=other.error_ns,
            memory_cost_bytes=max(1, other.memory_cost_bytes),
        ),
        plain,
    )


def test_a_gain_within_its_error_is_no_advice() -> None:
    """Lists cleared where there are none."""
    run = simulated()
    cleared = advice(forward_prefetch_of={"layers.0": 0})

    advised = recommend(run, measure(run), [finding(cleared)])

    assert advised.findings[0].advice == ()


@pytest.mark.parametrize(
    ("severity", "gain_ns", "left"),
    [
        (Severity.CRITICAL, 5, True),
        (Severity.WARNING, 5, True),
        (Severity.INFO, 5, False),
        (Severity.CRITICAL, 0, False),
        (Severity.CRITICAL, -5, False),
    ],
)
def test_a_warning_keeps_what_may_win(
    monkeypatch: pytest.MonkeyPatch, severity: Severity, gain_ns: int, left: bool
) -> None:
    """Of two within their error that which wins more, with no gain; not beside one
    that is sure of it.
    """
    run = simulated()
    m = measure(run)
    usual = predict(replay_run(run, m), Plan())
    gains = {"last": gain_ns, "every": gain_ns - 1}

    def predicted(base: object, plan: Plan) -> Prediction:
        sure = plan.forward_prefetch is not None
        gain = 100 if sure else gains[plan.accumulation or ""]
        return replace(usual, gain_ns=gain, error_ns=10)

    monkeypatch.setattr(predictions, "predict", predicted)
    every, last = advice(accumulation="every"), advice(accumulation="last")
    found = replace(finding(every, last), severity=severity)
    sure = replace(found, advice=(last, advice(forward_prefetch=1)))
    alone, beside = recommend(run, m, [found, sure]).findings

    assert alone.advice == ((last,) if left else ())
    assert [a.predicted_gain_ns for a in beside.advice] == [100]


ROOT_AGAIN = {"reshard_after_forward": {"<root>": True}}
"""One more gather that is waited for: it loses, and frees the root meanwhile."""


def test_a_loss_is_no_advice() -> None:
    """Whatever the detector thought of it."""
    run = simulated()
    predicted = predict(replay_run(run, measure(run)), plan_of(ROOT_AGAIN))

    advised = recommend(run, measure(run), [finding(advice(**ROOT_AGAIN))])

    assert predicted.gain_ns < -predicted.error_ns
    assert advised.findings[0].advice == ()


def test_memory_is_worth_no_loss_but_in_a_finding_about_memory() -> None:
    """What frees memory may win no time; where nothing else is wrong it may cost."""
    run = simulated()
    freeing = replace(advice(**ROOT_AGAIN), memory_cost_bytes=-1)
    about_time = replace(finding(freeing), cost_ns_per_step=1)
    about_memory = replace(finding(freeing), cost_bytes=1)

    advised = recommend(run, measure(run), [about_time, about_memory])
    time, memory = advised.findings

    assert time.advice == ()
    assert memory.advice[0].predicted_gain_ns is not None
    assert memory.advice[0].predicted_gain_ns < 0


def test_memory_that_nobody_knows_stays_unknown() -> None:
    """A communicator's own memory: the simulator knows it no better."""
    run = simulated(blocking=False)
    unknown = Advice(text="do", change={"separate_reduce_scatter_group": True})

    advised = recommend(run, measure(run), [finding(unknown)])

    assert advised.findings[0].advice[0].memory_cost_bytes is None


@pytest.mark.parametrize(
    "change",
    [
        {"reshard_after_forward": {"layers.9": False}},
        {"wrap": "Block"},
    ],
)
def test_what_does_not_fit_is_left_as_it_is(change: dict[str, object]) -> None:
    """A unit that the replayed rank has not; a class that it does not repeat."""
    run = simulated()
    given = finding(advice(**change))

    assert recommend(run, measure(run), [given]).findings == (given,)


def test_a_run_that_cannot_be_replayed_says_so_once() -> None:
    """A source without stalls: every piece of advice stays, the reason is one line."""
    data = record(step(4, blocking=True))
    kept = tuple(e for e in data.header.evidence if e != "stalls")
    run = run_of(replace(data, header=replace(data.header, evidence=kept)))
    given = [finding(advice(forward_prefetch=1)), finding(advice(forward_prefetch=2))]

    advised = recommend(run, measure(run), given)

    assert advised.findings == tuple(given)
    assert advised.replay_error is None
    assert advised.withheld == (
        "this run does not show stalls, which a replay needs: record it with "
        "`fsdpdoctor run`"
    )


def test_a_replay_that_is_off_predicts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its error shows, and advice is what the detector said."""
    run = simulated()
    given = finding(advice(forward_prefetch=1))
    monkeypatch.setattr(predictions, "MAX_REPLAY_ERROR", -1.0)  # even none is too much

    advised = recommend(run, measure(run), [given])

    assert advised.findings == (given,)
    assert advised.replay_error == 0.0
    assert advised.withheld is not None
    assert "predictions are withheld" in advised.withheld


def test_without_changes_nothing_is_replayed() -> None:
    """A healthy run's report costs what it did: no rank is read again."""
    run = simulated()
    m = measure(run)
    unread = replace(run, sources=())
    given = (finding(Advice(text="a larger batch")),)

    advised = recommend(unread, m, given)

    assert (advised.findings, advised.replay_error, advised.withheld) == (
        given,
        None,
        None,
    )


def test_the_report_has_gains_only_where_it_has_the_run() -> None:
    """Measures alone are not enough; the JSON says how far the replay was off."""
    run = simulated()
    m = measure(run)
    bare, full = report_of(m), report_of(m, run)

    def gains(report: object) -> list[int]:
        rows = msgspec.to_builtins(report)["findings"]
        every = [a["predicted_gain_ns"] for row in rows for a in row["advice"]]
        return [gain for gain in every if gain is not None]

    assert gains(bare) == []
    assert bare.health.replay_error is None
    assert full.health.replay_error == 0.0
    assert min(gains(full)) > MS // 10


def test_words_of_a_prediction() -> None:
    """Gain with its error beside the memory; the replay's error once, in the health."""
    run = simulated()
    m = measure(run)
    given = finding(
        replace(advice(), text="do.", predicted_gain_ns=MS, predicted_error_ns=MS // 5)
    )
    lost = finding(
        replace(advice(), text="do.", predicted_gain_ns=-MS, predicted_error_ns=MS // 5)
    )
    words = [
        item.text
        for row in content_of(report_from(m, [given, lost], [])).findings
        for item in row.advice
    ]
    health = content_of(report_of(m, run)).health

    assert words == [
        "do (predicted gain 1.00 ms per step (+-0.200 ms), costs 1 B per rank).",
        "do (predicted loss 1.00 ms per step (+-0.200 ms), costs 1 B per rank).",
    ]
    assert (
        "predicted gains: the simulator's replay of this run as it was is off by "
        "0.0 % of the step"
    ) in health


def test_memory_is_what_advice_to_do_the_same_says() -> None:
    """The larger of the two, and not known where advice does not know it: for every
    plan that makes the same step, in whatever words.
    """
    run = simulated()
    base = replay_run(run, measure(run))
    named = {unit.fqn: False for unit in base.calibration.step.units if unit.fqn}
    named.pop(
        base.calibration.step.units[base.calibration.step.root.units[0]].fqn, None
    )
    found = predict(base, plan_of({"reshard_after_forward": {ALL: False}}))
    other = predict(base, plan_of({"merge": 2}))

    def told(cost: int | None) -> Told:
        advised = replace(advice(reshard_after_forward=named), memory_cost_bytes=cost)
        return told_costs(base, (advised, Advice(text="say"), advice(merge=99)))

    more = found.memory_cost_bytes + 1
    assert memory_cost((), found) == found.memory_cost_bytes
    assert memory_cost(told(more), found) == more
    assert memory_cost(told(-9), found) == found.memory_cost_bytes
    assert memory_cost(told(None), found) is None
    assert memory_cost(told(more), other) == other.memory_cost_bytes
