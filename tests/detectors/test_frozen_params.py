"""FD503, frozen-params."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.frozen_params import frozen_params
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import (
    ITEMSIZE,
    UNKNOWN,
    Evidence,
    ModelSpec,
    ParamSpec,
    UnitSpec,
)
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import codes, found, not_judged, only, without

PICTURE = """
    all_gather  00......
    wait        00......
    forward     ..000000
"""


def frozen(fqn: str, trainable: int = 0) -> UnitSpec:
    """A unit of 1000 parameters, few of them trainable."""
    return unit(
        fqn, numel=1000, trainable_numel=trainable, frozen_numel=1000 - trainable
    )


def test_a_frozen_base_is_gathered_in_every_step() -> None:
    """95 % of 1 MiB never change; 2 of 8 ms wait; replicas take as much of 2 MiB."""
    finding = only(
        frozen_params, measured(draw(PICTURE, units=(frozen("layers.0", 50),)))
    )

    assert finding.severity == Severity.WARNING
    assert finding.units == ("layers.0",)
    assert finding.cost_ns_per_step == 2 * MS
    assert finding.cost_bytes == (1 << 20) * 95 // 100
    assert finding.advice[0].memory_cost_bytes == (2 << 20) * 95 // 100
    assert "ignored_params" in codes(finding)[0]


def test_a_unit_that_trains_in_part_is_of_the_frozen_model() -> None:
    """One product of the last layer trains: 2750 of 3000 never change."""
    units = (frozen("layers.0"), frozen("layers.1"), frozen("layers.2", 250))

    finding = only(frozen_params, measured(draw(PICTURE, units=units)))

    assert finding.units == ("layers.0", "layers.1", "layers.2")
    assert finding.evidence["frozen_share"] == round(2750 / 3000, 4)
    assert finding.summary.startswith("91.7 % of the units' parameters never change")


def test_adapters_that_are_units_alone() -> None:
    """Two of 10 parameters each beside a frozen 1000."""
    adapters = tuple(
        unit(f"layers.{at}.lora", numel=10, trainable_numel=10) for at in range(2)
    )
    units = (frozen("layers.0", 200), *adapters)

    finding = only(frozen_params, measured(draw(PICTURE, units=units)))

    assert finding.units == ("layers.0.lora", "layers.1.lora")
    assert finding.cost_ns_per_step == 0


def test_a_frozen_tower_beside_a_trained_one_is_no_finding() -> None:
    """Half of the parameters."""
    units = (frozen("vision"), unit("layers.0", numel=1000, trainable_numel=1000))

    assert found(frozen_params, measured(draw(PICTURE, units=units))) == []


def test_without_the_tree_it_cannot_tell() -> None:
    """Nothing says which parameters are frozen."""
    units = (unit("layers.0", frozen_numel=UNKNOWN),)
    bare = draw(PICTURE, evidence=without(RECORDED, Evidence.CONFIG))

    for data in (draw(PICTURE, units=units), bare):
        assert not_judged(frozen_params, measured(data)).needs == (Evidence.CONFIG,)


def stored(
    fqn: str, dtype: str, gather: str, *, trainable: bool = False, **known: Any
) -> UnitSpec:
    """A unit of one parameter of 1000 elements, half of it on each rank."""
    param = ParamSpec(
        fqn=f"{fqn}.weight",
        shape=(1000,),
        dtype=dtype,
        trainable=trainable,
        shard_dim=0,
        local_numel=500,
        padded_local_numel=500,
    )
    return unit(
        fqn,
        numel=1000,
        trainable_numel=1000 * trainable,
        frozen_numel=1000 * (not trainable),
        shard_bytes=500 * ITEMSIZE[dtype],
        orig_dtype=dtype,
        gather_dtype=gather,
        params=(param,),
        **known,
    )


BOTH = """
    all_gather  0.......1.......
    wait        0.......1.......
    forward     .0000000.1111111
"""


def test_a_frozen_tower_in_float32_beside_bfloat16() -> None:
    """It is half of what is gathered, and could be half of that."""
    tower = stored("vision", "float32", "float32")
    trained = stored("layers.0", "bfloat16", "bfloat16", trainable=True)
    finding = only(frozen_params, measured(draw(BOTH, units=(tower, trained))))

    assert (finding.severity, finding.units) == (Severity.WARNING, ("vision",))
    assert finding.cost_bytes == 1 << 19
    assert "25.0 % of all gathered bytes" in finding.summary
    assert "param_dtype=torch.bfloat16" in codes(finding)[0]


@pytest.mark.parametrize(
    "trained",
    [
        stored("layers.0", "float32", "float32", trainable=True),
        stored("layers.0", "bfloat16", "bfloat16"),
    ],
    ids=["trains in float32", "nothing trains"],
)
def test_float32_beside_what_does_not_train_narrow(trained: UnitSpec) -> None:
    """A look-alike: then nothing says that float32 is too wide."""
    units = (stored("vision", "float32", "float32"), trained)
    findings = found(frozen_params, measured(draw(BOTH, units=units)))

    assert not [f for f in findings if "float32" in f.summary]


def test_frozen_master_weights_are_held_for_nothing() -> None:
    """2000 bytes of each rank could be 1000, of 4000 that it holds."""
    policy: dict[str, Any] = {"param_dtype": "bfloat16"}
    units = (
        stored("vision", "float32", "bfloat16", **policy),
        stored("layers.0", "float32", "bfloat16", trainable=True, **policy),
    )
    finding = only(frozen_params, measured(draw(BOTH, units=units)))

    assert (finding.severity, finding.units) == (Severity.WARNING, ("vision",))
    assert finding.cost_bytes == 1000
    assert "25.0 % of its parameters' shards" in finding.summary
    assert finding.advice[0].memory_cost_bytes == -1000


THROUGH = """
    all_gather           0...1...............
    wait                 0...1...............
    forward              .000.111............
    backward_all_gather  ............0.......
    backward_wait        ............0.......
    backward             ........1111.0000000
"""


def through(first: UnitSpec, **changes: Any) -> Measures:
    """A unit, and one that trains after it, both in backward."""
    units = (first, stored("layers.0", "float32", "float32", trainable=True))
    return measured(draw(THROUGH, units=units, **changes))


def test_a_frozen_tower_in_backward() -> None:
    """7 of 20 ms of compute, and a gather of 1: what was before it is not trained."""
    finding = only(frozen_params, through(stored("vision", "float32", "float32")))

    assert (finding.severity, finding.confidence) == (Severity.WARNING, "high")
    assert (finding.units, finding.phase) == (("vision",), "backward")
    assert (finding.cost_ns_per_step, finding.cost_bytes) == (8 * MS, 1 << 20)
    assert "torch.no_grad()" in codes(finding)[0]


def test_a_frozen_tower_behind_what_trains() -> None:
    """A look-alike: adapters before it need the gradient that goes through it."""
    trained = stored("vision", "float32", "float32", trainable=True)

    assert found(frozen_params, through(trained)) == []


@pytest.mark.parametrize(
    "model",
    [
        ModelSpec(wrapper="fsdp2", unmanaged_params=1, unmanaged_trainable=1),
        None,
    ],
    ids=["a trained prompt outside", "unknown"],
)
def test_what_may_train_before_it_is_no_finding(model: ModelSpec | None) -> None:
    """A parameter outside all units may be what the gradient is for."""
    tower = stored("vision", "float32", "float32")

    assert found(frozen_params, through(tower, model=model)) == []


def test_a_block_around_what_trains_is_no_finding() -> None:
    """It begins before its adapter, and ends after it."""
    units = (
        stored("vision", "float32", "float32"),
        stored("vision.lora", "float32", "float32", trainable=True),
    )

    assert found(frozen_params, measured(draw(THROUGH, units=units))) == []


def test_a_root_that_trains_leaves_it_open() -> None:
    """A table in the root may run before the tower, a head does not."""
    units = (
        stored("vision", "float32", "float32"),
        stored("<root>", "float32", "float32", trainable=True, is_root=True),
    )
    finding = only(frozen_params, measured(draw(THROUGH, units=units)))

    assert (finding.severity, finding.confidence) == (Severity.INFO, "low")
    assert "<root>.weight runs before" in finding.summary


def test_a_reentrant_checkpoint_is_the_reason() -> None:
    """Only such a one needs an input that requires gradients."""
    tower = stored("vision", "float32", "float32")
    model = ModelSpec(wrapper="fsdp2", checkpoint="reentrant")
    finding = only(frozen_params, through(tower, model=model))

    assert "use_reentrant=False" in finding.advice[0].text
    assert codes(finding) == []
