"""Replicas are compared where the same thing was sampled after the same step."""

from __future__ import annotations

from dataclasses import replace

from fsdpdoctor.analysis.replicas import (
    Exchange,
    Replica,
    compared,
    data_parallel_only,
    exchanges,
    kept_alike,
    reaches,
    share_work,
)
from fsdpdoctor.schema import (
    GroupSpec,
    Phase,
    RankHeader,
    ReplicaKind,
    ReplicaSpec,
)
from fsdpdoctor.testing import Call, draw, measured, unit


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

    assert reaches(hybrid)["layers.0"] == [(0, 1, 2, 3)]
    assert data_parallel_only(hybrid)
    assert reaches(sliced)["layers.0"] == [(0, 1), (2, 3)]
    assert not data_parallel_only(sliced)


BARRIERS = "forward 00..000...\nother ..0....1.1"


def seen(kind: str, phase: Phase = Phase.OTHER) -> tuple[Exchange, ...]:
    """Of two ranks that issue one collective of 1 MiB, and later two barriers."""
    calls = (
        Call(kind=kind, site="moe.py:7", phase=phase),
        Call(kind="barrier", site="train.py:3"),
    )
    return exchanges(
        measured(*(draw(BARRIERS, rank=rank, calls=calls) for rank in (0, 1))).ranks
    )


def test_each_kind_once_with_the_most_of_a_step() -> None:
    """Over both ranks, and all recorded steps."""
    both = frozenset({0, 1})

    assert seen("alltoall_base", Phase.FORWARD) == (
        Exchange(
            ranks=both,
            kind="all_to_all",
            where="moe.py:7",
            of_work=True,
            step_bytes=1 << 20,
        ),
        Exchange(
            ranks=both,
            kind="barrier",
            where="train.py:3",
            of_work=False,
            step_bytes=2 << 20,
        ),
    )


def test_work_is_exchanged_in_a_forward_or_from_stage_to_stage() -> None:
    """By ranks of its group, and by no others."""
    for found in (seen("all_gather", Phase.FORWARD), seen("send")):
        assert share_work(found, 0, 1) == found[0]
        assert share_work(found, 0, 2) is None
    assert share_work(seen("all_gather", Phase.BACKWARD), 0, 1) is None


def test_ranks_are_kept_alike_by_half_of_what_they_hold_or_more() -> None:
    """3 MiB in a step, outside of a forward."""
    found = seen("all_reduce", Phase.BACKWARD)

    assert kept_alike(found, 6 << 20, 0, 1) == found
    assert kept_alike(found, (6 << 20) + 1, 0, 1) == ()
    assert kept_alike(found, 6 << 20, 0, 2) == ()
    assert kept_alike(found, 0, 0, 1) == ()
