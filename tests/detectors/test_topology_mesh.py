"""FD501, topology-mesh."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdpdoctor.changes.sharding_code import dimensions
from fsdpdoctor.detectors.topology_mesh import topology_mesh
from fsdpdoctor.finding import Confidence, Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Evidence
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import CUDA, codes, found, not_judged, only, without

PICTURE = """
    all_gather  0000....
    wait        0000....
    forward     ....0000
"""


def on_mesh(mesh: str, *parents: str, **known: int) -> RankData:
    """One unit on a mesh."""
    spec = unit("layers.0", mesh=mesh, parent_meshes=parents, **known)
    return draw(PICTURE, units=(spec,))


def test_meshes_in_words() -> None:
    """Named and unnamed dimensions."""
    assert dimensions("(replicate=2, shard=4)") == [("replicate", 2), ("shard", 4)]
    assert dimensions("(8)") == [(None, 8)]


def test_the_shard_part_of_a_mesh_for_hybrid_sharding() -> None:
    """Nothing reduces over the two replicas."""
    m = measured(on_mesh("(shard=4)", "(replicate=2, shard=4)"))

    finding = only(topology_mesh, m)

    assert finding.severity == Severity.CRITICAL
    assert finding.confidence == Confidence.HIGH
    assert finding.units == ("layers.0",)
    assert finding.evidence["all_reduces"] == 0
    assert '"cpu", (2, 4), ' in codes(finding)[0]


def test_an_unnamed_dimension_is_less_sure() -> None:
    """It could be another kind of parallelism."""
    m = measured(on_mesh("(4)", "(2, 4)"))

    assert only(topology_mesh, m).confidence == Confidence.MEDIUM


@pytest.mark.parametrize(
    ("mesh", "parents", "known"),
    [
        ("(dp=4)", ("(dp=4, tp=2)",), {}),
        ("(replicate=2, shard=4)", (), {"replicate_group": 1}),
        ("(replicate=2, shard=4)", ("(pp=2, replicate=2, shard=4)",), {}),
        ("(shard=8)", (), {}),
    ],
)
def test_meshes_that_are_right(
    mesh: str, parents: tuple[str, ...], known: dict[str, int]
) -> None:
    """Beside tensor or pipeline parallelism, whole, and one-dimensional."""
    assert found(topology_mesh, measured(on_mesh(mesh, *parents, **known))) == []


@pytest.mark.parametrize(
    ("mesh", "says"),
    [
        ("(replicate=1, shard=4)", "every all-reduce has one rank"),
        ("(replicate=4, shard=1)", "nothing is sharded"),
    ],
)
def test_a_dimension_of_one_is_information(mesh: str, says: str) -> None:
    """It is legal, and seldom meant."""
    finding = only(topology_mesh, measured(on_mesh(mesh)))

    assert finding.severity == Severity.INFO
    assert says in finding.summary


def test_one_shard_group_over_two_hosts() -> None:
    """Half of the step waits for the wire between them."""
    data = draw(PICTURE, CUDA, units=(unit("layers.0", mesh="(2)"),))
    here = replace(data, header=replace(data.header, local_world_size=1))
    there = replace(here, header=replace(here.header, rank=1, host="other"))

    finding = only(topology_mesh, measured(here, there))

    assert finding.severity == Severity.WARNING
    assert finding.cost_ns_per_step == 4 * MS
    assert finding.advice[0].memory_cost_bytes == 4 * (2 << 20)
    assert '"cuda", (2, 1), ' in codes(finding)[0]
    assert found(topology_mesh, measured(data)) == []


def test_without_meshes_it_cannot_tell() -> None:
    """Neither the tree nor a mesh in it."""
    bare = draw(PICTURE, evidence=without(RECORDED, Evidence.CONFIG))

    for data in (draw(PICTURE), bare):
        assert not_judged(topology_mesh, measured(data)).needs == (Evidence.CONFIG,)
