"""Which ranks the gradients of a unit are reduced over."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence

from fsdpdoctor.schema import UNKNOWN, RankHeader

Sets = list[tuple[int, ...]]
"""Sets of ranks that share none, each ascending."""


def reaches(headers: Sequence[RankHeader]) -> dict[str, Sets]:
    """For each unit, the sets of ranks that its gradients are reduced over.

    Shard and replicate groups that share a rank are one set: the reduce-scatter and
    the all-reduce after it together reach all of it.
    """
    numbers: dict[tuple[int, ...], int] = {}  # of groups, by their ranks
    said: dict[str, array[int]] = defaultdict(lambda: array("q"))
    for header in headers:
        mine = [numbers.setdefault(g.ranks, len(numbers)) for g in header.groups]
        for spec in header.units:
            of_unit = said[spec.fqn]
            for group in (spec.shard_group, spec.replicate_group):
                known = 0 <= group < len(mine)
                of_unit.extend((header.rank, mine[group] if known else UNKNOWN))
    groups, found = list(numbers), dict[bytes, Sets]()
    for pairs in said.values():  # nearly always the same of all units
        if (key := pairs.tobytes()) not in found:
            found[key] = _joined(pairs, groups)
    return {unit: found[pairs.tobytes()] for unit, pairs in said.items()}


def _joined(pairs: array[int], groups: Sequence[tuple[int, ...]]) -> Sets:
    """The sets that ranks and their groups make. `pairs`: a rank, a group or UNKNOWN,
    and so on.
    """
    around: dict[int, int] = {}  # a rank to one of its set; the set's own to itself

    def set_of(rank: int) -> int:
        one = around.setdefault(rank, rank)
        while one != around[one]:
            around[rank] = one = around[one]
        return one

    def join(ranks: Iterator[int], one: int) -> None:
        for rank in ranks:
            around[set_of(rank)] = set_of(one)

    joined: set[int] = set()
    for rank, group in zip(pairs[::2], pairs[1::2], strict=True):
        set_of(rank)
        members = groups[group] if group != UNKNOWN else ()
        join(iter(members[:1]), rank)
        if group not in joined:
            joined.add(group)
            join(iter(members), rank)
    sets: dict[int, list[int]] = defaultdict(list)
    for rank in around:
        sets[set_of(rank)].append(rank)
    return sorted(tuple(sorted(ranks)) for ranks in sets.values())


def place_of(sets: Sets) -> dict[int, int]:
    """For each rank, which of the sets it is in."""
    return {rank: place for place, ranks in enumerate(sets) for rank in ranks}


def data_parallel_only(headers: Sequence[RankHeader]) -> bool:
    """Whether units' groups reach every rank: nothing else divides the ranks."""
    ranks = {header.rank for header in headers}
    found = {id(sets): sets for sets in reaches(headers).values()}
    return bool(found) and all(
        len(sets) == 1 and ranks <= set(sets[0]) for sets in found.values()
    )
