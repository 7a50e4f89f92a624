"""FD503, frozen-params."""

from __future__ import annotations

from fsdpdoctor.detectors.frozen_params import frozen_params
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import UNKNOWN, Evidence, UnitSpec
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
    """95 % never change; 2 of 8 ms wait for them; replicas take 2 MiB more."""
    finding = only(
        frozen_params, measured(draw(PICTURE, units=(frozen("layers.0", 50),)))
    )

    assert finding.severity == Severity.WARNING
    assert finding.units == ("layers.0",)
    assert finding.cost_ns_per_step == 2 * MS
    assert finding.cost_bytes == 1 << 20
    assert finding.advice[0].memory_cost_bytes == 2 << 20
    assert "ignored_params" in codes(finding)[0]


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
