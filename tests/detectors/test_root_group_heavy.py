"""FD203, root-group-heavy."""

from __future__ import annotations

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.changes.plan import plan_of
from fsdpdoctor.detectors.root_group_heavy import root_group_heavy
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MIB, MS
from fsdpdoctor.schema import Evidence, ModelSpec, ParamSpec
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.step import Param
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import codes, found, not_judged, only, without
from tests.rig.changed import replace
from tests.simulate.steps import step

PICTURE = """
    all_gather  001.......
    wait        00........
    unsharded   ..00000000
    forward     ..11111111
"""


def param(fqn: str, rows: int) -> ParamSpec:
    """A parameter of 1 Ki columns over two ranks."""
    return ParamSpec(
        fqn=fqn,
        shape=(rows, 1024),
        dtype="float32",
        trainable=True,
        shard_dim=0,
        local_numel=rows * 512,
        padded_local_numel=rows * 512,
    )


def run(
    rows: int, block_bytes: int = 4 * MIB, **model: tuple[tuple[str, ...], ...]
) -> Measures:
    """A root with embedding and head of some rows, and one block."""
    root = unit(
        "<root>",
        is_root=True,
        numel=2 * rows * 1024,
        unsharded_bytes=8 * rows * 1024,
        params=(param("embed_tokens.weight", rows), param("lm_head.weight", rows)),
    )
    return measured(
        draw(
            PICTURE,
            units=(root, unit("layers.0", unsharded_bytes=block_bytes)),
            model=ModelSpec(wrapper="fsdp2", tied=model.get("tied", ())),
        )
    )


def test_a_large_vocabulary_in_the_root() -> None:
    """Two tables of 128 MiB, gathered for 8 of 10 ms."""
    finding = only(root_group_heavy, run(32 * 1024))

    assert finding.severity == Severity.WARNING
    assert finding.units == ("<root>",)
    assert finding.cost_bytes == 256 * MIB
    assert finding.cost_ns_per_step == 2 * MS
    assert finding.evidence["live_share_of_step"] == 0.8
    assert finding.advice[0].memory_cost_bytes == -128 * MIB
    assert codes(finding)[0].splitlines()[-2:] == [
        'fully_shard(model.get_submodule("embed_tokens"))',
        'fully_shard(model.get_submodule("lm_head"), reshard_after_forward=False)',
    ]
    assert finding.advice[0].change == {"split_root": True}


def test_a_small_one_is_information() -> None:
    """The same shape at 8 MiB: wrapped the same, and not worth a warning."""
    assert only(root_group_heavy, run(1024)).severity == Severity.INFO


def test_large_tables_beside_large_blocks_are_memory() -> None:
    """256 MiB beside blocks of 200: units of their own win no time, and half of it."""
    finding = only(root_group_heavy, run(32 * 1024, block_bytes=200 * MIB))

    assert finding.severity == Severity.INFO
    assert finding.advice[0].memory_cost_bytes == -128 * MIB
    assert found(root_group_heavy, run(32 * 1024, block_bytes=300 * MIB)) == []


def test_tied_tables_stay_in_one_unit() -> None:
    """No call can part them, and one unit is what the root is."""
    finding = only(
        root_group_heavy,
        run(32 * 1024, tied=(("embed_tokens.weight", "lm_head.weight"),)),
    )

    assert finding.advice[0].text.startswith("The tables are tied")
    assert codes(finding) == []


def test_a_light_root_is_no_finding() -> None:
    """Less than twice a block."""
    assert found(root_group_heavy, run(512)) == []


def test_without_parameters_it_cannot_tell() -> None:
    """A root whose parameters are not listed, or a source without the tree."""
    bare = draw(PICTURE, units=(unit("<root>", is_root=True), unit("layers.0")))
    trace = draw(PICTURE, evidence=without(RECORDED, Evidence.CONFIG))

    for data in (bare, trace):
        assert not_judged(root_group_heavy, measured(data)).needs == (Evidence.CONFIG,)


def test_what_is_found_can_be_simulated() -> None:
    """A head whose name also says `embed` is a head to both: the plan fits the root."""
    root = unit(
        "<root>",
        is_root=True,
        unsharded_bytes=256 * MIB,
        numel=64 * MIB,
        params=(
            param("embed.weight", 32 * 1024),
            param("head.embed.weight", 32 * 1024),
        ),
    )
    finding = only(
        root_group_heavy, measured(draw(PICTURE, units=(root, unit("layers.0"))))
    )
    (change,) = [advice.change for advice in finding.advice]
    base = step(2)
    params = tuple(Param(fqn=p.fqn, rows=8, row=8) for p in root.params)
    heavy = replace(base.units[0], params=params)
    made = changed(
        plan_of(change),
        replace(base, units=(heavy, *base.units[1:])),
        RunConstraints(),
    )

    assert [u.fqn for u in made.step.units][::3] == ["embed", "head.embed"]
