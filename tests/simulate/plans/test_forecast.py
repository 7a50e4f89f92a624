"""From a run to what `whatif` shows: exact where the run was simulated."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.errors import InputError
from fsdpdoctor.run import Run, in_memory
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.simulate.engine.simulate import simulate
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor.simulate.plans.forecast import (
    code_of,
    encode_forecast,
    exposed_by_cause,
    forecast,
    replay_run,
    slowest_rank,
)
from fsdpdoctor.testing import draw, measured
from tests.simulate.steps import step

ASYNC = Plan(unshard_async_op=True)


def run_of(*ranks: int) -> Run:
    """The same simulated step on some ranks."""
    data = [record(step(4, blocking=True)) for _ in ranks]
    header = RunHeader(run_id="s", source="simulated", world_size=8)
    return in_memory(
        header,
        [
            replace(one, header=replace(one.header, rank=rank))
            for one, rank in zip(data, ranks, strict=True)
        ],
    )


def test_a_rank_without_a_judged_step_sets_no_pace() -> None:
    """Its record breaks off in the warm-up: it waited for nobody, and for nothing."""
    cut = draw("forward 0000", first_step=0, steps=2)
    whole = draw("forward 0000", rank=1, first_step=0, steps=9)

    assert slowest_rank(measured(cut, whole)) == 1
    assert slowest_rank(measured(cut)) == 0


def test_a_simulated_run_is_replayed_exactly() -> None:
    """The lowest of the ranks that wait least for others; none: nothing to replay."""
    run = run_of(0, 1)
    base = replay_run(run, measure(run))

    assert slowest_rank(measure(run)) == base.calibration.rank == 0
    assert (base.error, base.calibration.constraints.world_size) == (0, 8)
    none = run_of()
    with pytest.raises(InputError, match="nothing to replay"):
        replay_run(none, measure(none))


def test_a_plan_is_predicted_where_the_replay_is_good() -> None:
    """As JSON: plan, step and code are the prediction's; else it says why not."""
    run = run_of(0)
    base = replay_run(run, measure(run))
    found = forecast(base, [ASYNC])
    (prediction,) = found.predictions
    content = json.loads(encode_forecast(found))
    off = forecast(replace(base, error=0.5), [ASYNC])

    assert found.withheld is None
    assert content["baseline"]["step_ns"] == base.outcome.step_ns
    (said,) = content["predictions"]
    assert said["plan"] == ASYNC.changes
    assert said["step_ns"] == prediction.step_ns
    assert said["code"] == code_of(base, prediction)
    assert "_set_unshard_async_op(True)" in said["code"]
    assert off.predictions == ()
    assert off.withheld == off.base.why_withheld


def test_causes_add_up_to_what_is_exposed() -> None:
    """Of a simulated step, to the nanosecond."""
    one = step(4)

    assert sum(exposed_by_cause(one).values()) == simulate(one).exposed.total_ns
