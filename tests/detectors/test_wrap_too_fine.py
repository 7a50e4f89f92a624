"""FD202, wrap-too-fine."""

from __future__ import annotations

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.wrap_too_fine import wrap_too_fine
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MIB, MS
from fsdpdoctor.schema import BlockSpec, Evidence, ModelSpec
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import codes, found, not_judged, only, without

PICTURE = """
    all_gather  0.1.2.3.............
    wait        0.1.2.3.............
    forward     .0.1.2.3333333333333
"""
BLOCKS = BlockSpec(
    container="layers", module_class="Block", count=2, units=2, numel=1000
)


def run(*names: str, unsharded_bytes: int = MIB, picture: str = PICTURE) -> Measures:
    """The picture with some units of one size in two blocks."""
    units = tuple(unit(name, unsharded_bytes=unsharded_bytes) for name in names)
    model = ModelSpec(wrapper="fsdp2", numel=2000, blocks=(BLOCKS,))
    return measured(draw(picture, model=model, units=units))


PARTS = ("layers.0.attn", "layers.0.mlp", "layers.1.attn", "layers.1.mlp")


def test_two_small_units_in_each_block() -> None:
    """Four units of 1 MiB that wait 4 ms of 20: two would do."""
    finding = only(wrap_too_fine, run(*PARTS))

    assert finding.units == PARTS
    assert finding.severity == Severity.WARNING
    assert finding.cost_ns_per_step == 4 * MS
    assert finding.evidence["units_per_block"] == 2.0
    assert finding.evidence["units_to_merge"] == 2
    assert finding.advice[0].memory_cost_bytes == 2 * MIB
    assert codes(finding)[0].splitlines()[-3:] == [
        'fully_shard(model.get_submodule("layers.0"))',
        'fully_shard(model.get_submodule("layers.1"))',
        "fully_shard(model)",
    ]
    assert finding.advice[0].change == {"merge": 2}


def test_small_units_that_cost_nothing_are_information() -> None:
    """The same units, all of them hidden."""
    finding = only(wrap_too_fine, run(*PARTS, picture="forward 0123"))

    assert finding.severity == Severity.INFO


def test_one_unit_per_block_is_no_finding() -> None:
    """However small the model; nor are experts, nor units of 128 MiB."""
    assert found(wrap_too_fine, run("layers.0", "layers.1", "a", "b")) == []
    experts = [f"layers.{at}.experts.{e}" for at in range(2) for e in range(2)]
    assert found(wrap_too_fine, run(*experts)) == []
    assert found(wrap_too_fine, run(*PARTS, unsharded_bytes=128 * MIB)) == []


def test_without_the_tree_it_cannot_tell() -> None:
    """Blocks are part of the configuration."""
    evidence = without(RECORDED, Evidence.CONFIG)

    answer = not_judged(wrap_too_fine, measured(draw(PICTURE, evidence=evidence)))

    assert answer.needs == (Evidence.CONFIG,)
