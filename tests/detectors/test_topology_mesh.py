"""FD501, topology-mesh."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fsdpdoctor.changes.sharding_code import dimensions
from fsdpdoctor.detectors.topology_mesh import topology_mesh
from fsdpdoctor.finding import Confidence, Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    Evidence,
    GroupSpec,
    ParamSpec,
    Phase,
    ReplicaKind,
    ReplicaSpec,
    Spans,
)
from fsdpdoctor.testing import RECORDED, Call, draw, measured, unit
from tests.detectors.answers import (
    CUDA,
    codes,
    found,
    not_judged,
    only,
    sized,
    without,
)

PICTURE = """
    all_gather  0000....
    wait        0000....
    forward     ....0000
"""


def on_mesh(mesh: str, *parents: str, **known: int) -> RankData:
    """One unit on a mesh."""
    spec = unit("layers.0", mesh=mesh, parent_meshes=parents, **known)
    return draw(PICTURE, units=(spec,))


def test_stages_of_a_pipeline_are_no_replicas() -> None:
    """They began alike and differ, and send each other activations."""

    def sending(rank: int, data: RankData) -> RankData:
        pair = GroupSpec(name="pp", ranks=(rank % 2, rank % 2 + 2), size=2)
        groups = (*data.header.groups, pair)
        calls = draw("other 0.......", calls=(Call(kind="send", site="a.py:1"),))
        spans = [
            Spans(
                **{n: getattr(s.spans, n) for n in Spans.columns()}
                | {"group": np.full(len(s.spans), len(groups) - 1, np.int32)}
            )
            for s in calls.steps
        ]
        steps = tuple(
            replace(step, spans=one)
            for step, one in zip(data.steps, spans, strict=True)
        )
        return replace(
            data,
            names=calls.names,
            header=replace(data.header, groups=groups),
            steps=steps,
        )

    ranks = list(four("a", "a", "b", "b"))
    assert len(found(topology_mesh, measured(*ranks))) == 1
    piped = [sending(rank, data) for rank, data in enumerate(ranks)]
    assert found(topology_mesh, measured(*piped)) == []


@pytest.mark.parametrize(
    ("mesh", "parent", "source", "said"),
    [
        ("(shard=4)", "(replicate=2, shard=4)", "rehearsal", [Severity.WARNING]),
        ("(shard=4)", "(replicate=2, shard=4)", "recorded", []),
        ("(shard=4)", "(replicate=1, shard=4)", "rehearsal", []),
        ("(dp=4)", "(dp=4, tp=2)", "rehearsal", []),
        ("(replicate=2, shard=4)", "(replicate=2, shard=4)", "rehearsal", []),
    ],
)
def test_a_slice_is_told_by_names_where_there_is_one_rank(
    mesh: str, parent: str, source: str, said: list[Severity]
) -> None:
    """A rehearsal has no replicas to compare: a warning; other parallelisms' meshes,
    and a replica of one, are silent. Recorded ranks say it themselves.
    """
    m = measured(on_mesh(mesh, parent))
    m = replace(m, run=replace(m.run, source=source))

    assert [one.severity for one in found(topology_mesh, m)] == said


def test_meshes_in_words() -> None:
    """Named and unnamed dimensions."""
    assert dimensions("(replicate=2, shard=4)") == [("replicate", 2), ("shard", 4)]
    assert dimensions("(8)") == [(None, 8)]


NO_SAMPLES = without(RECORDED, Evidence.REPLICAS)
GROUPS = (
    GroupSpec(name="a", ranks=(0, 1), size=2),
    GroupSpec(name="b", ranks=(2, 3), size=2),
)


def four(*values: str, steps: tuple[int, ...] = (-1, 4)) -> Any:
    """Two shard groups of two ranks; rank 0 and 2, and 1 and 3, hold the same part.

    `values` are what the ranks of each pair hold after the second sample.
    """
    for rank, value in enumerate(values):
        spec = unit(
            "layers.0",
            mesh="(shard=2)",
            parent_meshes=("(replicate=2, shard=2)",),
            shard_group=rank // 2,
            params=(param("layers.0.weight"),),
        )
        data = draw(PICTURE, rank=rank, units=(spec,))
        sample = ReplicaSpec(
            name="layers.0.weight",
            kind=ReplicaKind.SHARD,
            trainable=True,
            shape=(2, 2),
            shard_index=rank % 2,
            steps=steps,
            values=(f"start of part {rank % 2}", value)[-len(steps) :],
        )
        yield replace(
            data,
            header=replace(
                data.header,
                world_size=4,
                groups=GROUPS,
                replicas=(sample,),
                evidence=(*data.header.evidence, Evidence.REPLICAS),
            ),
        )


def param(fqn: str) -> ParamSpec:
    """A parameter of a unit."""
    return ParamSpec(
        fqn=fqn,
        shape=(4, 2),
        dtype="float32",
        trainable=True,
        shard_dim=0,
        local_numel=4,
        padded_local_numel=4,
    )


def test_replicas_that_nobody_reduces_over() -> None:
    """They began alike and differ: proof, whatever the dimensions are called."""
    finding = only(topology_mesh, measured(*four("a", "b", "c", "d")))

    assert finding.severity == Severity.CRITICAL
    assert finding.confidence == Confidence.HIGH
    assert finding.units == ("layers.0",)
    assert finding.evidence["differ_since_step"] == 4
    assert finding.evidence["alike_at_the_end"] in ([[0], [2]], [[1], [3]])
    assert '"cpu", (2, 2), ' in codes(finding)[0]


def exchanging(call: Call, bytes: int, parent: str) -> list[RankData]:
    """Four ranks that train apart, and exchange something over all of them."""
    every = GroupSpec(name="all", ranks=(0, 1, 2, 3), size=4)
    ranks = []
    for data in four(*"abcd"):
        (spec,) = data.header.units
        units = (
            replace(spec, parent_meshes=(parent,), shard_group=1 + spec.shard_group),
        )
        header = replace(data.header, units=units, groups=(every, *GROUPS))
        calls = draw("other 0.......", calls=(call,))
        steps = tuple(
            replace(step, spans=one.spans, call_sites=one.call_sites)
            for step, one in zip(data.steps, calls.steps, strict=True)
        )
        ranks.append(
            sized(replace(data, names=calls.names, header=header, steps=steps), bytes)
        )
    return ranks


TO_ALL = Call(kind="all_to_all", site="moe.py:7", phase=Phase.FORWARD)


def test_experts_may_differ() -> None:
    """Ranks that exchange activations may hold other parts: nobody can tell."""
    m = measured(*exchanging(TO_ALL, 1 << 16, "(2, 2)"))

    assert "they may hold other parts" in not_judged(topology_mesh, m).reason


@pytest.mark.parametrize("parent", ["(dp_shard=2, cp=2)", "(replicate=2, shard=2)"])
def test_exchanged_activations_leave_the_names_to_decide(parent: str) -> None:
    """The dimension that was not passed holds data or sequences: a warning."""
    finding = only(
        topology_mesh,
        measured(*map(dp_shard_named, exchanging(TO_ALL, 1 << 16, parent))),
    )

    assert (finding.severity, finding.confidence) == (
        Severity.WARNING,
        Confidence.MEDIUM,
    )
    assert finding.summary.endswith(
        ". They exchange all_to_all in their forwards: right if they hold other parts "
        "of the model there, and wrong if the same ones"
    )
    assert finding.evidence["at"] == "moe.py:7"


def dp_shard_named(data: RankData) -> RankData:
    """Units on the dimension of its parent that shards."""
    (spec,) = data.header.units
    name = "dp_shard" if "dp_shard" in spec.parent_meshes[0] else "shard"
    units = (replace(spec, mesh=f"({name}=2)"),)
    return replace(data, header=replace(data.header, units=units))


def test_a_loss_reduced_in_the_forward_is_no_exchange_of_work() -> None:
    """Some numbers: the proof stands."""
    call = Call(kind="all_reduce", site="moe.py:9", phase=Phase.FORWARD)
    m = measured(*exchanging(call, 8, "(replicate=2, shard=2)"))

    assert only(topology_mesh, m).severity == Severity.CRITICAL


@pytest.mark.parametrize(("size", "number"), [(1 << 20, 0), (1 << 10, 1)])
def test_a_script_that_averages_replicas_itself(size: int, number: int) -> None:
    """All that a rank holds, in some step: local steps between averages are right."""
    call = Call(kind="all_reduce", site="train.py:9")
    m = measured(*exchanging(call, size, "(replicate=2, shard=2)"))

    assert len(found(topology_mesh, m)) == number


def test_the_part_of_two_dimensions_that_both_shard() -> None:
    """Passing the whole mesh would replicate over the first: one flat dimension."""
    ranks = []
    for data in four("a", "b", "c", "d"):
        (spec,) = data.header.units
        spec = replace(spec, parent_meshes=("(dp_shard=2, cp=2)",))
        ranks.append(replace(data, header=replace(data.header, units=(spec,))))

    finding = only(topology_mesh, measured(*ranks))

    assert "mesh['dp_shard', 'cp']._flatten('dp_shard_cp')" in codes(finding)[0]


@pytest.mark.parametrize("values", ["abab", "aaaa"])
def test_ranks_that_stay_alike_are_nobodys_fault(values: str) -> None:
    """The script reduces, or all see the same data."""
    assert found(topology_mesh, measured(*four(*values))) == []


def test_ranks_that_never_were_alike_are_no_replicas() -> None:
    """As with tensor parallelism: nothing is said without a sample from before."""
    assert found(topology_mesh, measured(*four(*"abcd", steps=(4,)))) == []


def test_without_samples_it_cannot_tell_what_other_ranks_are() -> None:
    """Two sets of ranks that share no group: replicas, or another parallelism."""
    ranks = [
        replace(data, header=replace(data.header, replicas=(), evidence=NO_SAMPLES))
        for data in four(*"abcd")
    ]

    assert not_judged(topology_mesh, measured(*ranks)).needs == (Evidence.REPLICAS,)


def test_two_dimensions_that_were_meant_to_be_one() -> None:
    """FSDP2 replicates over the first, which says of itself that it shards."""
    m = measured(on_mesh("(dp_shard=2, cp=2)", replicate_group=1))

    finding = only(topology_mesh, m)

    assert finding.severity == Severity.WARNING
    assert "FSDP2 replicates over dp_shard and shards over cp alone" in finding.summary
    assert codes(finding)[0].splitlines()[1] == (
        "shard_mesh = mesh['dp_shard', 'cp']._flatten('dp_shard_cp')"
    )


@pytest.mark.parametrize(
    ("mesh", "parents", "known"),
    [
        ("(dp=4)", ("(dp=4, tp=2)",), {}),
        ("(replicate=2, shard=4)", (), {"replicate_group": 1}),
        ("(dp_replicate=2, dp_shard_cp=2)", (), {"replicate_group": 1}),
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


@pytest.mark.parametrize(("per_host", "hosts"), [(2, 2), (4, 0), (1, 0)])
def test_one_rank_alone_knows_the_hosts_of_its_group(per_host: int, hosts: int) -> None:
    """A rehearsal is of rank 0 of four; launchers put so many in a row to a host."""
    group = GroupSpec(name="world", role="shard", size=4, ranks=(0, 1, 2, 3))
    data = draw(PICTURE, CUDA, units=(unit("layers.0", mesh="(4)"),), groups=(group,))
    alone = replace(data, header=replace(data.header, local_world_size=per_host))
    told = found(topology_mesh, measured(alone))

    assert [finding.evidence["hosts"] for finding in told] == [hosts] * (hosts > 1)


def test_without_meshes_it_cannot_tell() -> None:
    """Neither the tree nor a mesh in it."""
    bare = draw(PICTURE, evidence=without(RECORDED, Evidence.CONFIG))

    for data in (draw(PICTURE), bare):
        assert not_judged(topology_mesh, measured(data)).needs == (Evidence.CONFIG,)
