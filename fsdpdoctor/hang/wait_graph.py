"""Who waits for whom, from how many collectives each rank has issued in each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsdpdoctor.hang.standing import Group, Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A rank waits in a collective that others have not issued."""

    rank: int
    waits_for: tuple[int, ...]
    group: Group
    seq: int  # torch's own number of the collective


def waits(ranks: Sequence[Standing]) -> tuple[Wait, ...]:
    """The edges of the graph. A rank that others have all come to has none."""
    counts = {one.rank: one.counts for one in ranks}
    behind: dict[tuple[Group, int], tuple[int, ...]] = {}
    found = []
    for one in ranks:
        group = one.waits_in
        if one.call is None or group is None:
            continue
        place = group, one.counts[group]
        if place not in behind:  # the same for all that wait there
            behind[place] = _behind(counts, *place)
        if behind[place]:
            found.append(
                Wait(
                    rank=one.rank,
                    waits_for=behind[place],
                    group=group,
                    seq=one.counts[group],
                )
            )
    return tuple(found)


def _behind(
    counts: Mapping[int, Mapping[Group, int]], group: Group, seq: int
) -> tuple[int, ...]:
    """Members that have issued fewer collectives than that."""
    return tuple(
        rank
        for rank in group.members
        if rank in counts and counts[rank].get(group, seq) < seq
    )


def ends(graph: Sequence[Wait]) -> tuple[int, ...]:
    """Ranks that are waited for and wait for nobody."""
    waiting = {edge.rank for edge in graph}
    return tuple(
        sorted({r for edge in graph for r in edge.waits_for if r not in waiting})
    )


def circle(graph: Sequence[Wait]) -> tuple[int, ...]:
    """Ranks that wait for each other, or for such; empty where following waits comes to
    an end.
    """
    waiting = {edge.rank for edge in graph}
    by: dict[int, list[int]] = {}  # who waits for a rank that waits
    left: dict[int, int] = {}  # how many such each waits for
    for edge in graph:
        held = [other for other in edge.waits_for if other in waiting]
        left[edge.rank] = len(held)
        for other in held:
            by.setdefault(other, []).append(edge.rank)
    free = [rank for rank, others in left.items() if not others]
    for rank in free:  # which grows: whoever waited for free ones alone is free
        del left[rank]
        for one in by.get(rank, ()):
            left[one] -= 1
            if not left[one]:
                free.append(one)
    return tuple(sorted(left))
