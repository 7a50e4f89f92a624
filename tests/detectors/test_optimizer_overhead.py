"""FD404, optimizer-overhead."""

from __future__ import annotations

from fsdpdoctor.detectors.optimizer_overhead import optimizer_overhead
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import Evidence, ModelSpec, OptimizerSpec
from fsdpdoctor.testing import RECORDED, draw, measured
from tests.detectors.answers import CUDA, codes, found, not_judged, without
from tests.rig.changed import replace

SLOW = """
    forward    0000000..........
    optimizer  .......xxxxxx....
    clip       .............xx..
"""


def optimizer(fused: bool) -> ModelSpec:
    """A model with one SGD."""
    spec = OptimizerSpec(
        optimizer_class="SGD",
        params=4,
        dtensors=4,
        stale=0,
        without_grad=0,
        fused=fused,
    )
    return ModelSpec(wrapper="fsdp2", optimizers=(spec,))


def test_step_and_clipping_are_judged_apart() -> None:
    """6 and 2 of 17 ms on a device."""
    step, clip = found(
        optimizer_overhead, measured(draw(SLOW, CUDA, model=optimizer(fused=False)))
    )

    assert (step.severity, step.cost_ns_per_step) == (Severity.CRITICAL, 6 * MS)
    assert (clip.severity, clip.cost_ns_per_step) == (Severity.WARNING, 2 * MS)
    assert "group.update(fused=True, foreach=False)" in codes(step)[0]
    assert "clip_grad_norm_" in codes(clip)[0]


def test_the_passes_of_a_closure_are_not_the_optimizers() -> None:
    """17 ms of step(closure) are 14 of a micro-batch, of which 1 was waited, and 3."""
    m = measured(
        draw("""
            optimizer    xxxxxxxxxxxxxxxxx...
            micro_batch  .xxxxxxxxxxxxxx.....
            all_gather   .0..................
            wait         .0..................
            copy_out     ..0.................
            forward      ...0000.............
            backward     ........0000000.....
        """)
    )
    budget = {part: ns // MS for part, ns in m.budget_ns_per_step().items() if ns}

    assert budget == {
        "exposed_all_gather": 1,
        "optimizer": 3,
        "copy": 1,
        "forward": 4,
        "backward": 7,
        "compute": 1,
        "other": 3,
    }


def test_a_step_inside_backward_is_the_optimizers() -> None:
    """It lies in the micro-batch, and takes 3 of its 8 ms."""
    m = measured(
        draw("""
            micro_batch  xxxxxxxx..
            backward     00000000..
            optimizer    ..xxx.....
        """)
    )

    assert m.budget_ns_per_step()["optimizer"] == 3 * MS


def test_a_fused_optimizer_is_not_told_to_fuse() -> None:
    """There is no code to give."""
    step, _ = found(
        optimizer_overhead, measured(draw(SLOW, CUDA, model=optimizer(fused=True)))
    )

    assert codes(step) == []


def test_of_two_optimizers_none_is_told_to_fuse_for_the_other() -> None:
    """Which of them takes the time is not known."""
    (sgd,) = optimizer(fused=False).optimizers
    muon = replace(sgd, optimizer_class="Muon", fused=None)
    model = ModelSpec(wrapper="fsdp2", optimizers=(muon, sgd))
    step, _ = found(optimizer_overhead, measured(draw(SLOW, CUDA, model=model)))

    (advice,) = step.advice
    assert advice.code is None
    assert advice.text == (
        "Muon has no fused step in torch (a compiled one is "
        "torch.compile(optimizer.step)); SGD has one."
    )


def test_on_cpu_it_is_information() -> None:
    """A small model's optimizer is a large share by nature."""
    severities = {f.severity for f in found(optimizer_overhead, measured(draw(SLOW)))}

    assert severities == {Severity.INFO}


def test_a_short_optimizer_is_no_finding() -> None:
    """1 of 17 ms."""
    quick = "forward 0000000000000000.\noptimizer ................x"

    assert found(optimizer_overhead, measured(draw(quick, CUDA))) == []


def test_without_optimizer_spans_it_cannot_tell() -> None:
    """A source that does not show them."""
    m = measured(draw(SLOW, evidence=without(RECORDED, Evidence.OPTIMIZER)))

    assert not_judged(optimizer_overhead, m).needs == (Evidence.OPTIMIZER,)
