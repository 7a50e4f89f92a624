"""Replicas are compared where the same thing was sampled after the same step."""

from __future__ import annotations

from dataclasses import replace

from fsdpdoctor.analysis.alike.replicas import Replica, compared, pairs_that_differ
from fsdpdoctor.schema import RankHeader, ReplicaKind, ReplicaSpec


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


def differing(*camps: tuple[int, ...]) -> Replica:
    """Ranks that hold a parameter in several ways."""
    return Replica(
        name="head",
        kind=ReplicaKind.OUTSIDE,
        trainable=True,
        ranks=tuple(sorted(rank for camp in camps for rank in camp)),
        steps=(-1, 2),
        differ_since=2,
        changes=True,
        camps=camps,
    )


def test_two_ranks_for_each_two_kinds_that_differ() -> None:
    """Kinds are even and odd: of the even ones two differ, and of the odd ones none,
    but odd from even.
    """
    replica = differing((0, 1, 3), (2, 4))

    pairs = list(pairs_that_differ(replica, lambda rank: rank % 2))

    assert pairs == [(0, 2), (2, 1)]


def test_ranks_of_one_kind_are_one_question() -> None:
    """However many there are, each of which holds a value of its own."""
    replica = differing(*((rank,) for rank in range(5000)))

    assert list(pairs_that_differ(replica, lambda _: None)) == [(0, 1)]
    assert len(list(pairs_that_differ(replica, lambda rank: rank))) == 256 * 255 // 2
