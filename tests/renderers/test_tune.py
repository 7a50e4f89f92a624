"""What `tune` prints."""

from __future__ import annotations

import json
from io import StringIO

from rich.console import Console

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.quantities import MS
from fsdpdoctor.renderers.tune import encode_tuning, show_tuning
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.predict import Prediction
from fsdpdoctor.tune import Candidate, Failed, Measured, Row, Tuning, Verdict
from tests.rig.changed import replace
from tests.simulate.steps import step


def run(step_ms: int, exposed_ms: int) -> Measured:
    """One short run; its bits are always the same."""
    exposed = {"all_gather": exposed_ms * MS, "reduce_scatter": 0}
    return Measured(step_ns=step_ms * MS, exposed_ns=exposed, bits=("a", "b"))


def candidate(plan: Plan, step_ms: int) -> Candidate:
    """A plan, and a prediction of its step with no exposed time left."""
    made = changed(plan, step(2), RunConstraints()).step
    prediction = Prediction(
        plan=plan,
        step=made,
        step_ns=step_ms * MS,
        error_ns=2 * MS,
        gain_ns=MS,
        exposed_ns={"all_gather": 0, "reduce_scatter": 0},
        peak_bytes=None,
        memory_cost_bytes=7,
        gathered_peak_bytes=0,
        assumptions=(),
        forbidden=None,
    )
    return Candidate(
        plan=plan,
        step=made,
        prediction=prediction,
        code="model._set_unshard_async_op(True)",
    )


KEPT = Row(
    candidate=candidate(Plan(unshard_async_op=True), 70),
    runs=[run(72, 12), run(74, 14)],
    verdict=Verdict.KEPT,
)
FAILED = Row(
    candidate=candidate(Plan(merge=2), 60),
    runs=[Failed(reason="out of memory")],
    verdict=Verdict.FAILED,
)
TUNING = Tuning(
    baseline=Row(candidate=None, runs=[run(100, 40), run(102, 42)]),
    rows=(KEPT, FAILED),
    deterministic=True,
    stopped="5 runs were made",
)


def shown(tuning: Tuning) -> list[str]:
    """The lines on a wide terminal."""
    file = StringIO()
    show_tuning(tuning, Console(file=file, width=160, highlight=False, markup=False))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_the_table_has_predicted_against_measured() -> None:
    """A row for each plan with its result, then the change to keep and its code."""
    lines = shown(TUNING)

    assert [line.split() for line in lines[2:5]] == [
        ["as", "it", "is", "101", "ms", "1.00", "ms", "41.0", "ms", "2"],
        [
            "unshard",
            "async",
            "op",
            "70.0",
            "ms",
            "2.00",
            "ms",
            "73.0",
            "ms",
            "1.00",
            "ms",
            "0",
            "ms",
            "13.0",
            "ms",
            "2",
            "same",
            "kept",
        ],
        [
            "merge",
            "2",
            "60.0",
            "ms",
            "2.00",
            "ms",
            "0",
            "ms",
            "1",
            "failed:",
            "out",
            "of",
            "memory",
        ],
    ]
    assert lines[5:] == [
        "",
        "the runs of the script as it is agree to the bit",
        "stopped: 5 runs were made",
        "",
        "keep: unshard async op: 101 ms -> 73.0 ms (27.7 % less)",
        "    model._set_unshard_async_op(True)",
    ]


def test_without_a_kept_change_it_says_so() -> None:
    """And why there is no prediction, and no word on bits."""
    tuning = Tuning(
        baseline=TUNING.baseline, rows=(FAILED,), deterministic=False, withheld="why"
    )
    lines = shown(tuning)

    assert lines[0] == "why"
    assert lines[-3:] == [
        "the script's own runs differ in bits: identical results cannot be judged",
        "",
        "keep: the script as it is; no change was measurably faster",
    ]


def test_a_change_that_ran_once_is_not_said_to_be_slow() -> None:
    """It was faster; what is missing is another run."""
    once = replace(KEPT, runs=KEPT.runs[:1], verdict=Verdict.FASTER)
    tuning = replace(TUNING, rows=(FAILED, once))

    assert shown(tuning)[-1] == (
        "keep: the script as it is; unshard async op was faster, but ran 1 time of the "
        "2 that it takes to say so: more --max-runs or --minutes"
    )


def test_json_has_every_run() -> None:
    """Whole numbers, and the plan as `whatif --json` has it."""
    found = json.loads(encode_tuning(TUNING))

    assert found["baseline"] == {
        "step_ns": 101 * MS,
        "noise_ns": 1 * MS,
        "runs_ns": [100 * MS, 102 * MS],
        "exposed_ns": {"all_gather": 41 * MS, "reduce_scatter": 0},
        "bits": [["a", "b"], ["a", "b"]],
    }
    assert found["kept"] == found["candidates"][0]
    assert found["candidates"][1] == {
        "step_ns": None,
        "noise_ns": 0,
        "runs_ns": [],
        "exposed_ns": {},
        "bits": [],
        "plan": {"merge": 2},
        "summary": "merge 2",
        "verdict": "failed",
        "failure": "out of memory",
        "promises_same_bits": False,
        "predicted": {
            "step_ns": 60 * MS,
            "error_ns": 2 * MS,
            "exposed_ns": {"all_gather": 0, "reduce_scatter": 0},
            "memory_cost_bytes": 7,
        },
    }
