"""FD201, wrap-too-coarse."""

from __future__ import annotations

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.wrap_too_coarse import wrap_too_coarse
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import BlockSpec, Evidence, ModelSpec, UnitSpec
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import codes, found, not_judged, only, without

PICTURE = """
    all_gather  000.........
    wait        000.........
    forward     ...000000000
"""
ROOT = unit("<root>", is_root=True, numel=1000, unsharded_bytes=4000)


def run(model: ModelSpec | None, *units: UnitSpec) -> Measures:
    """The picture with a model and units."""
    return measured(draw(PICTURE, model=model, units=units))


def layers(units: int, **other: int) -> BlockSpec:
    """Four blocks of 200 parameters each."""
    given = {"count": 4, "numel": 200} | other
    return BlockSpec(container="layers", module_class="Block", units=units, **given)


def test_a_root_with_all_blocks_in_it() -> None:
    """Four blocks with 80 % of the parameters; its gather waits 3 ms."""
    model = ModelSpec(wrapper="fsdp2", numel=1000, blocks=(layers(0),))

    finding = only(wrap_too_coarse, run(model, ROOT))

    assert finding.units == ("<root>",)
    assert finding.severity == Severity.CRITICAL
    assert finding.cost_ns_per_step == 3 * MS
    assert finding.cost_bytes == 4000
    assert finding.summary == (
        "4 Blocks of layers with 80.0 % of the parameters are part of the unit "
        "<root>, so that 3.91 KiB are gathered at once"
    )
    assert codes(finding)[0].splitlines()[-2:] == [
        'for name in ["layers.0", "layers.1", "layers.2", "layers.3"]:',
        "    fully_shard(model.get_submodule(name))",
    ]
    assert finding.advice[0].memory_cost_bytes == -2000


def test_one_block_left_out_is_a_warning() -> None:
    """Three of four blocks are units; the fourth holds 20 %."""
    model = ModelSpec(wrapper="fsdp2", numel=1000, blocks=(layers(3),))
    blocks = tuple(unit(f"layers.{at}", numel=200) for at in range(3))

    assert only(wrap_too_coarse, run(model, ROOT, *blocks)).severity == Severity.WARNING


def test_wrapped_blocks_are_no_finding() -> None:
    """Every block is a unit; the experts inside each are left alone."""
    experts = BlockSpec(
        container="layers.0.experts", module_class="MLP", count=8, units=0, numel=20
    )
    model = ModelSpec(wrapper="fsdp2", numel=1000, blocks=(layers(4), experts))
    blocks = tuple(unit(f"layers.{at}", numel=200) for at in range(4))

    assert found(wrap_too_coarse, run(model, ROOT, *blocks)) == []


def test_without_the_tree_it_cannot_tell() -> None:
    """A trace, or a record without a model, does not show modules."""
    evidence = without(RECORDED, Evidence.CONFIG)

    assert not_judged(wrap_too_coarse, run(None, ROOT)).needs == (Evidence.CONFIG,)
    assert not_judged(
        wrap_too_coarse, measured(draw(PICTURE, evidence=evidence))
    ).needs == (Evidence.CONFIG,)
