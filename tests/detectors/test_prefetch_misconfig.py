"""FD105, prefetch-misconfig."""

from __future__ import annotations

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.prefetch_misconfig import prefetch_misconfig
from fsdpdoctor.finding import Finding, Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import Evidence, ModelSpec, UnitSpec
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import codes, found, not_judged, only, without
from tests.rig.changed import replace

PICTURE = """
    all_gather  .0123....................
    wait        .....2...................
    forward     0000000000000000.........
    forward     ...11................
    forward     .......222...............
    forward     ...........333...........
    backward    ................333222111
"""


def model(**lists: tuple[int, ...]) -> tuple[UnitSpec, ...]:
    """A root and three layers, some with forward prefetch lists."""
    names = ("root", "first", "second", "third")
    units = (
        unit("<root>", is_root=True),
        *(unit(f"layers.{at}") for at in range(3)),
    )
    return tuple(
        replace(spec, forward_prefetch=lists.get(name, ()))
        for name, spec in zip(names, units, strict=True)
    )


def problems(finding: Finding) -> list[tuple[object, object, object]]:
    """(unit, target, what is not prefetched) of each entry."""
    rows = finding.evidence["problems"]
    assert isinstance(rows, list)
    return [
        (row["unit"], row["target"], row["not_prefetched"])
        for row in rows
        if isinstance(row, dict)
    ]


def with_lists(**lists: tuple[int, ...]) -> Measures:
    """The picture with some lists."""
    return measured(draw(PICTURE, units=model(**lists)))


def test_a_chain_that_skips_a_layer() -> None:
    """layers.0 prefetches layers.2, so layers.1 waits 1 ms for its own."""
    finding = only(prefetch_misconfig, with_lists(first=(3,)))

    assert problems(finding) == [("layers.0", "layers.2", "layers.1")]
    assert finding.units == ("layers.1", "layers.0")
    assert finding.phase == "forward"
    assert finding.severity == Severity.WARNING
    assert finding.cost_ns_per_step == 1 * MS
    assert finding.cost_bytes == 4 << 20
    assert "layers.0 prefetches layers.2, which runs 1 unit later than the next, " in (
        finding.summary
    )
    assert 'order = ["layers.0", "layers.1", "layers.2"]' in codes(finding)[0]


def test_a_target_that_has_run_is_gathered_for_nothing() -> None:
    """layers.1 prefetches layers.0, whose forward is over."""
    finding = only(prefetch_misconfig, with_lists(first=(2,), second=(1,)))

    assert problems(finding) == [("layers.1", "layers.0", "layers.2")]


def test_the_right_chain_is_no_finding() -> None:
    """Depth 1 and depth 2 along the order, with or without the root."""
    assert found(prefetch_misconfig, with_lists(first=(2,), second=(3,))) == []
    chain = {"root": (1, 2), "first": (2, 3), "second": (3,)}
    assert found(prefetch_misconfig, with_lists(**chain)) == []
    assert found(prefetch_misconfig, with_lists()) == []


def test_the_backward_chain_is_the_reverse() -> None:
    """layers.2 to layers.1 to layers.0 is right in backward; the forward one not."""
    units = model()
    right = [replace(u, backward_prefetch=b) for u, b in pairs(units, (3, 0, 1, 2))]
    wrong = [replace(u, backward_prefetch=b) for u, b in pairs(units, (1, 2, 3, 0))]

    assert found(prefetch_misconfig, measured(draw(PICTURE, units=tuple(right)))) == []
    finding = only(prefetch_misconfig, measured(draw(PICTURE, units=tuple(wrong))))
    assert finding.phase == "backward"
    assert problems(finding)[0] == ("<root>", "layers.0", "layers.2")


def pairs(
    units: tuple[UnitSpec, ...], targets: tuple[int, ...]
) -> list[tuple[UnitSpec, tuple[int, ...]]]:
    """Each unit with its one target, none for 0."""
    return [(u, (t,) if t else ()) for u, t in zip(units, targets, strict=True)]


def test_with_recomputation_the_lists_are_cleared() -> None:
    """No new forward chain where backward runs the forward again."""
    m = measured(
        draw(
            PICTURE,
            units=model(first=(3,)),
            model=ModelSpec(wrapper="fsdp2", checkpoint="non_reentrant"),
        )
    )

    assert codes(only(prefetch_misconfig, m))[0].endswith(
        "model.get_submodule(name).set_modules_to_forward_prefetch([])"
    )


def test_without_lists_it_cannot_tell() -> None:
    """A trace does not show what was configured."""
    evidence = without(RECORDED, Evidence.PREFETCH)

    answer = not_judged(
        prefetch_misconfig, measured(draw(PICTURE, units=model(), evidence=evidence))
    )

    assert answer.needs == (Evidence.PREFETCH,)


TWO = """
    forward  00............33........
    forward  ..11............44......
    forward  ....22............55....
"""


def of_two_models(*lists: tuple[int, ...]) -> Measures:
    """Two models of a root and two layers each, which run one after the other."""
    names = ("<root>", "layers.0", "layers.1")
    units = [
        unit(
            f"{name} [tree={tree}]" if tree else name,
            is_root=name == "<root>",
            tree=tree,
            model=tree,
        )
        for tree in range(2)
        for name in names
    ]
    listed = [
        replace(spec, forward_prefetch=mine)
        for spec, mine in zip(units, lists, strict=True)
    ]
    spec = ModelSpec(wrapper="fsdp2", models=("Actor", "Critic"))
    return measured(draw(TWO, units=tuple(listed), model=spec))


def test_each_model_has_a_chain_of_its_own() -> None:
    """The first one's last unit needs no list for the second one's root."""
    m = of_two_models((1,), (2,), (), (4,), (5,), ())

    assert found(prefetch_misconfig, m) == []


def test_a_list_of_another_root_s_unit() -> None:
    """FSDP2 gathers none of one tree for another; the finding is of its model alone."""
    m = of_two_models((1,), (2,), (4,), (4,), (5,), ())
    finding = only(prefetch_misconfig, m)

    assert problems(finding) == [("layers.1", "layers.0 [tree=1]", None)]
    assert finding.units == ("layers.1",)
    assert finding.evidence["order"] == ["<root>", "layers.0", "layers.1"]
    assert finding.summary.startswith(
        "Actor, not run: the forward prefetch lists do not fit the order of the units "
        "in 1 place: layers.1 prefetches layers.0 of Critic, which is another root's"
    )
