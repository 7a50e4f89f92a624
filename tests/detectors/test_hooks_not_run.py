"""FD504, hooks-not-run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fsdpdoctor.detectors.hooks_not_run import hooks_not_run
from fsdpdoctor.finding import Severity
from fsdpdoctor.rank_end_files import Beat
from fsdpdoctor.schema import (
    COUNTER_DIRECT_METHODS,
    Evidence,
    IdleParentSpec,
    Kind,
    ModelSpec,
    OptimizerSpec,
    Phase,
    StepTimes,
)
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import codes, found, not_judged, only, without
from tests.rig.changed import replace

HEALTHY = """
    forward   0011....
    backward  ....1100
"""


def optimizer(**known: int) -> ModelSpec:
    """A model whose AdamW has four tensors."""
    healthy = OptimizerSpec(
        optimizer_class="AdamW", params=4, dtensors=4, stale=0, without_grad=0
    )
    changed: Any = known
    return ModelSpec(wrapper="fsdp2", optimizers=(replace(healthy, **changed),))


def test_an_optimizer_built_before_sharding() -> None:
    """All four tensors are no parameters of the model any more."""
    model = optimizer(stale=4, dtensors=0, without_grad=4)

    finding = only(hooks_not_run, measured(draw(HEALTHY, model=model)))

    assert finding.severity == Severity.CRITICAL
    assert finding.evidence["stale"] == 4
    assert codes(finding)[0].endswith(
        "optimizer = type(optimizer)(model.parameters(), **given)"
    )


def test_an_optimizer_built_while_the_root_was_gathered() -> None:
    """Two of four tensors are what a forward without backward had gathered."""
    model = optimizer(gathered=2, dtensors=2, without_grad=2)

    finding = only(hooks_not_run, measured(draw(HEALTHY, model=model)))

    assert finding.severity == Severity.CRITICAL
    assert finding.summary == (
        "2 of the 4 tensors of AdamW are what units had gathered and not the model's "
        "own parameters: it was built after a forward that left them gathered, and "
        "never changes them"
    )
    assert finding.advice[0].text == (
        "Build the optimizer before the first forward, or reshard() before it."
    )
    assert codes(finding)[0].endswith(
        "        module.reshard()\n"
        "# Several groups likewise.\n"
        "known = inspect.signature(type(optimizer)).parameters\n"
        "given = {\n"
        "    name: value\n"
        "    for name, value in optimizer.defaults.items()\n"
        "    if name in known\n"
        "}\n"
        "optimizer = type(optimizer)(model.parameters(), **given)"
    )


def test_no_gradient_at_all_is_a_warning() -> None:
    """They are the model's, and none had a gradient."""
    m = measured(draw(HEALTHY, model=optimizer(without_grad=4)))

    assert only(hooks_not_run, m).severity == Severity.WARNING


def test_plain_tensors_of_ignored_parameters_are_no_finding() -> None:
    """Two of four are DTensors, none is stale; one is unused."""
    model = optimizer(dtensors=2, without_grad=1)

    assert found(hooks_not_run, measured(draw(HEALTHY, model=model))) == []


def test_a_backward_that_broke_off_is_said_of_its_ranks() -> None:
    """With the step from which it is so; where torch has a method for it, with that."""
    broken = ModelSpec(wrapper="fsdp2", broken_off_step=4)
    ranks = (draw(HEALTHY), draw(HEALTHY, rank=1, model=broken))

    finding = only(hooks_not_run, measured(*ranks, available=("reset_iter_state",)))

    assert (finding.severity, finding.ranks) == (Severity.CRITICAL, (1,))
    assert finding.evidence == {"from_step": 4}
    assert codes(finding)[0].endswith("model.reset_iter_state()")
    older = only(hooks_not_run, measured(*ranks, available=("unshard",)))
    assert codes(older) == []
    assert "Build the model and its optimizer anew" in older.advice[0].text


def test_methods_past_the_hooks() -> None:
    """`generate` of the sharded model, three times in each step."""
    name = f"{COUNTER_DIRECT_METHODS}: generate"

    finding = only(hooks_not_run, measured(draw(HEALTHY, counters={name: 3})))

    assert finding.severity == Severity.CRITICAL
    assert finding.evidence == {"methods": ["generate"], "calls": 3}
    assert 'register_fsdp_forward_method(model, "generate")' in codes(finding)[0]


def test_a_unit_that_never_ran() -> None:
    """layers.1 is trainable, and only layers.0 is called."""
    units = (unit("layers.0"), unit("layers.1"))

    finding = only(hooks_not_run, measured(draw("forward 00", units=units)))

    assert finding.units == ("layers.1",)
    assert finding.phase == "forward"


@pytest.mark.parametrize("gap", [True, False])
def test_a_model_that_no_recorded_step_ran(gap: bool) -> None:
    """It was trained in a step that was not recorded, if there is one: whether it ran
    is not known then. layers.1 of the model that did run is told in any case.
    """
    units = (unit("layers.0"), unit("layers.1"), unit("a of Net #2", model=1))
    data = draw("forward 00", units=units)
    if gap:
        at = np.array([99], dtype=np.int64)
        times = StepTimes(step=at, start_ns=at, end_ns=at + 1)
        last = replace(data.steps[-1], unrecorded=times)
        data = replace(data, steps=(*data.steps[:-1], last))

    finding = only(hooks_not_run, measured(data))

    assert finding.units == (("layers.1",) if gap else ("layers.1", "a of Net #2"))
    assert finding.summary.endswith(
        "1 trainable unit never ran a forward in a recorded step: layers.1"
        if gap
        else "2 trainable units never ran a forward: layers.1, a of Net #2"
    )


def test_a_unit_of_warm_up_steps_alone() -> None:
    """The model of the first steps, trained before another: it did run."""
    units = (unit("layers.0"), unit("layers.1"))
    before, after = (draw(f"forward {at}{at}", units=units) for at in (1, 0))

    steps = (*before.steps[:2], *after.steps[2:])
    assert found(hooks_not_run, measured(replace(after, steps=steps))) == []


@pytest.mark.parametrize(("step", "said"), [(9, 0), (8, 1)])
def test_a_unit_of_the_step_that_was_cut_off(step: int, said: int) -> None:
    """The last events are of layers.1, after the last whole step, 8: it did begin."""
    units = (unit("layers.0"), unit("layers.1"))
    data = draw("forward 00", units=units)
    beat = Beat(
        count=1,
        step=step,
        micro_batch=0,
        unit=1,
        kind=Kind.ALL_GATHER,
        phase=Phase.FORWARD,
        seq=9,
        group=0,
        time_ns=0,
    )

    assert len(found(hooks_not_run, measured(replace(data, beats=(beat,))))) == said


@pytest.mark.parametrize("reshard", [True, False])
def test_a_backward_hook_that_is_lost(reshard: bool) -> None:
    """layers.1 has a forward and no backward: wrong only where it resharded."""
    units = (unit("layers.0"), unit("layers.1", reshard_after_forward=reshard))

    answer = found(
        hooks_not_run, measured(draw("forward 0011..\nbackward ....00", units=units))
    )

    assert [f.units for f in answer] == ([("layers.1",)] if reshard else [])


def test_without_units_and_optimizers_it_cannot_tell() -> None:
    """Neither was recorded."""
    evidence = without(RECORDED, Evidence.UNITS, Evidence.OPTIMIZER_CONFIG)

    answer = not_judged(hooks_not_run, measured(draw(HEALTHY, evidence=evidence)))

    assert set(answer.needs) == {Evidence.UNITS, Evidence.OPTIMIZER_CONFIG}


def test_a_sharded_parent_whose_parts_are_called_one_by_one() -> None:
    """Both blocks are roots of their own, and one stays gathered after its forward."""
    units = (
        unit("layers.0", reshard_after_forward=False, is_root=True),
        unit("layers.1", reshard_after_forward=True, is_root=True),
    )
    parent = IdleParentSpec(fqn="", module_class="Net", params=1, units=(0, 1))
    model = ModelSpec(wrapper="fsdp2", idle_parents=(parent,))

    finding = only(hooks_not_run, measured(draw(HEALTHY, units=units, model=model)))

    assert finding.severity == Severity.WARNING
    assert finding.units == ("layers.0", "layers.1")
    assert finding.cost_bytes == 4 << 20
    assert finding.summary == (
        "the forward of Net, which is sharded, never ran: each of the 2 units that ran "
        "inside it is a root of its own, and no backward prefetches the next one; "
        "4.00 MiB stay gathered after forward; its own 1 parameter never gathered"
    )
