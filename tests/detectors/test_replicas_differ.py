"""FD507, replicas-differ."""

from __future__ import annotations

import pytest

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.replicas_differ import replicas_differ
from fsdpdoctor.finding import Severity
from fsdpdoctor.schema import Evidence, GroupSpec, ParamSpec, ReplicaKind, ReplicaSpec
from fsdpdoctor.testing import draw, measured, unit
from tests.detectors.answers import found, not_judged, only
from tests.rig.changed import replace

ALL = GroupSpec(name="all", ranks=(0, 1, 2), size=3)
PARAM = ParamSpec(
    fqn="layers.0.weight",
    shape=(4, 2),
    dtype="float32",
    trainable=True,
    shard_dim=0,
    local_numel=4,
    padded_local_numel=4,
)


def three(
    kind: ReplicaKind,
    *samples: tuple[str, ...],
    group: GroupSpec = ALL,
    name: str = "head.weight",
    trainable: bool = True,
    first: int = -1,
) -> Measures:
    """Three ranks in one replicate group, and what each sampled of one thing."""
    ranks = []
    for rank, values in enumerate(samples):
        spec = unit("layers.0", replicate_group=0, params=(PARAM,))
        data = draw("forward 0000", rank=rank, units=(spec,))
        sample = ReplicaSpec(
            name=name,
            kind=kind,
            trainable=trainable,
            shard_index=0 if kind == ReplicaKind.SHARD else -1,
            steps=(first, 3, 4)[: len(values)],
            values=values,
        )
        header = replace(
            data.header,
            world_size=3,
            groups=(group,),
            replicas=(sample,),
            evidence=(*data.header.evidence, Evidence.REPLICAS),
        )
        ranks.append(replace(data, header=header))
    return measured(*ranks)


def test_a_learning_rate_that_one_rank_lowered() -> None:
    """Rank 2 differs from the other two since step 4; it is the odd one."""
    m = three(
        ReplicaKind.OPTIMIZER,
        *(("0.1", "0.1", "0.1"), ("0.1", "0.1", "0.1"), ("0.1", "0.1", "0.05")),
        name="AdamW group 0: lr",
    )

    finding = only(replicas_differ, m)

    assert finding.severity == Severity.CRITICAL
    assert finding.ranks == (2,)
    assert finding.summary == (
        "ranks step differently: AdamW group 0: lr differ since step 4 at the latest"
    )


def test_copies_of_one_shard() -> None:
    """Their gradients are reduced over all three: they began apart."""
    m = three(ReplicaKind.SHARD, ("a",), ("a",), ("b",), name="layers.0.weight")

    finding = only(replicas_differ, m)

    assert finding.ranks == (2,)
    assert "copies of one shard differ: layers.0.weight, from the start" in (
        finding.summary
    )


def test_shards_that_no_group_joins_are_not_replicas() -> None:
    """FD501 asks whether they should be."""
    alone = GroupSpec(name="one", ranks=(), size=1)
    m = three(
        ReplicaKind.SHARD, ("a",), ("a",), ("b",), name="layers.0.weight", group=alone
    )

    assert found(replicas_differ, m) == []


def test_ranks_with_seeds_of_their_own() -> None:
    """What no unit covers never was alike; of all-different ranks all are named."""
    finding = only(replicas_differ, three(ReplicaKind.OUTSIDE, ("a",), ("b",), ("c",)))

    assert finding.ranks == (0, 1, 2)
    assert finding.summary == (
        "1 parameter outside every unit had other values on other ranks from the "
        "start: head.weight"
    )


def test_trained_apart_is_another_fault() -> None:
    """FD508 says it: they began alike."""
    m = three(ReplicaKind.OUTSIDE, ("s", "a"), ("s", "b"), ("s", "c"))

    assert found(replicas_differ, m) == []


def test_experts_of_their_own_are_not_judged() -> None:
    """Where groups leave ranks apart, other parallelism may give each its own."""
    alone = GroupSpec(name="one", ranks=(), size=1)
    m = three(ReplicaKind.OUTSIDE, ("a",), ("a",), ("b",), group=alone)

    assert found(replicas_differ, m) == []


@pytest.mark.parametrize(
    ("samples", "findings"),
    [
        ((("a", "a"), ("a", "a"), ("b", "b")), 1),
        ((("a", "c"), ("a", "d"), ("a", "e")), 0),
        ((("a", "a"), ("a", "a"), ("a", "a")), 0),
        ((("a",), ("a",), ("b",)), 0),
    ],
    ids=["filled on some", "statistics of batches", "alike", "sampled once"],
)
def test_buffers(samples: tuple[tuple[str, ...], ...], findings: int) -> None:
    """Only those that training does not change must be alike."""
    m = three(ReplicaKind.BUFFER, *samples, name="rope.inv_freq")

    assert len(found(replicas_differ, m)) == findings


def test_one_rank_alone_cannot_tell() -> None:
    """There is nothing to compare with."""
    alone = three(ReplicaKind.OUTSIDE, ("a",))

    assert not_judged(replicas_differ, alone).needs == (Evidence.RANKS,)
