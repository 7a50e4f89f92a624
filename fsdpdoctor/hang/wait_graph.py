"""Who waits for whom, from how many collectives each rank has issued in each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fsdpdoctor.hang.standing import GroupKey, Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A rank waits in a collective that others have not issued."""

    rank: int
    waits_for: tuple[int, ...]
    group: GroupKey
    seq: int  # torch's own number of the collective


def waits(ranks: Sequence[Standing]) -> tuple[Wait, ...]:
    """The edges of the graph. A rank that others have all come to has none."""
    counts = {one.rank: one.counts for one in ranks}
    found = []
    for one in ranks:
        group = one.waits_in
        if one.call is None or group is None:
            continue
        seq = one.counts[group]
        behind = tuple(
            rank
            for rank in group[1]
            if rank in counts
            and rank != one.rank
            and counts[rank].get(group, seq) < seq
        )
        if behind:
            found.append(Wait(rank=one.rank, waits_for=behind, group=group, seq=seq))
    return tuple(found)


def ends(graph: Sequence[Wait]) -> tuple[int, ...]:
    """Ranks that are waited for and wait for nobody."""
    waiting = {edge.rank for edge in graph}
    return tuple(
        sorted({r for edge in graph for r in edge.waits_for if r not in waiting})
    )


def circle(graph: Sequence[Wait]) -> tuple[int, ...]:
    """Ranks that wait for each other; empty where following waits comes to an end."""
    left: Mapping[int, set[int]] = {edge.rank: set(edge.waits_for) for edge in graph}
    while True:
        free = [r for r, others in left.items() if not others & set(left)]
        if not free:
            return tuple(sorted(left))
        left = {r: others for r, others in left.items() if r not in free}
