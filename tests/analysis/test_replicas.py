"""Replicas are compared where the same thing was sampled after the same step."""

from __future__ import annotations

from dataclasses import replace

from fsdpdoctor.analysis.replicas import (
    Replica,
    compared,
    data_parallel_only,
    reaches,
)
from fsdpdoctor.schema import GroupSpec, RankHeader, ReplicaKind, ReplicaSpec
from fsdpdoctor.testing import unit


def header(rank: int, *replicas: ReplicaSpec) -> RankHeader:
    """A rank with samples."""
    return RankHeader(rank=rank, world_size=4, replicas=replicas)


def sample(value: str, *later: str, steps: tuple[int, ...] = (-1, 2, 5)) -> ReplicaSpec:
    """Of one parameter outside every unit."""
    values = (value, *later)
    return ReplicaSpec(
        name="head",
        kind=ReplicaKind.OUTSIDE,
        steps=steps[: len(values)],
        values=values,
    )


def test_only_common_steps_are_compared() -> None:
    """Rank 1 was not asked after step 2; what differs there is not known."""
    one = header(0, sample("a", "b", "c"))
    other = header(1, sample("a", "c", steps=(-1, 5)))

    assert list(compared([one, other])) == [
        Replica(
            name="head",
            kind=ReplicaKind.OUTSIDE,
            trainable=False,
            ranks=(0, 1),
            steps=(-1, 5),
            differ_since=None,
            changes=True,
            camps=((0, 1),),
        )
    ]


def test_since_when_and_who() -> None:
    """Alike at first; after step 2 rank 1 stands alone."""
    ranks = [header(r, sample("a", "b" if r == 1 else "c")) for r in (0, 1, 2)]

    (replica,) = compared(ranks)

    assert (replica.differ_since, replica.camps) == (2, ((0, 2), (1,)))
    assert replica.began_alike
    assert not replica.alike


def test_other_shapes_and_other_parts_are_other_things() -> None:
    """A shard is compared with the same part of the same parameter."""
    shard = replace(sample("a"), kind=ReplicaKind.SHARD, shard_index=0)
    others = (
        replace(shard, shard_index=1, values=("b",)),
        replace(shard, shape=(3,), values=("b",)),
    )

    for other in others:
        assert list(compared([header(0, shard), header(1, other)])) == []


def test_groups_that_share_a_rank_reach_one_set() -> None:
    """Shard groups (0, 1) and (2, 3), replicated over (0, 2) and (1, 3): all four."""
    pairs = ((0, 1), (2, 3), (0, 2), (1, 3))
    groups = tuple(GroupSpec(name=str(p), ranks=p, size=2) for p in pairs)

    def of(rank: int, *, replicated: bool) -> RankHeader:
        spec = unit(
            "layers.0",
            shard_group=rank // 2,
            replicate_group=2 + rank % 2 if replicated else -1,
        )
        return RankHeader(rank=rank, world_size=4, groups=groups, units=(spec,))

    hybrid = [of(rank, replicated=True) for rank in range(4)]
    sliced = [of(rank, replicated=False) for rank in range(4)]

    assert reaches(hybrid, "layers.0") == [(0, 1, 2, 3)]
    assert data_parallel_only(hybrid)
    assert reaches(sliced, "layers.0") == [(0, 1), (2, 3)]
    assert not data_parallel_only(sliced)
