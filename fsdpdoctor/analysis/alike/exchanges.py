"""What ranks exchange by collectives that FSDP2 did not issue.

Ranks that exchange activations hold parts of one model, and are no replicas; ranks
whose script reduces as much as they hold are kept alike by it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.analysis.alike.replicas import Replica, pairs_that_differ
from fsdpdoctor.analysis.call_sites import kind_word
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.schema import Phase, distinct, distinct_rows, one_of

POINT_TO_POINT = ("send", "recv")
"""How stages of a pipeline exchange, in a forward or around it."""


NUMBERS_BYTES = 1024
"""Of a step: losses and metrics that are reduced in a forward have no more."""


def stages(ranks: Sequence[RankMeasures]) -> dict[int, int]:
    """The stage of each rank that sends or receives, as a pipeline's do: its place in
    the group.
    """
    found: dict[int, int] = {}
    for rank in ranks:
        names = [at for at, name in enumerate(rank.names) if name in POINT_TO_POINT]
        used = distinct(rank.others.group[one_of(rank.others.name, names)])
        for group in used[(used >= 0) & (used < len(rank.header.groups))].tolist():
            members = rank.header.groups[group].ranks
            if rank.rank in members:
                found[rank.rank] = members.index(rank.rank)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Ranks that exchange something by collectives of one kind, in recorded steps."""

    ranks: frozenset[int]
    kind: str  # "all_to_all"
    where: str | None  # "train.py:43", of one of them
    of_work: bool  # in a forward, or from stage to stage; else outside
    step_bytes: int  # of one rank, in the step that has the most


def exchanges(ranks: Sequence[RankMeasures]) -> tuple[Exchange, ...]:
    """All of some ranks, each set of ranks and kind once: the rank's that has most."""
    found: dict[tuple[frozenset[int], str, bool], Exchange] = {}
    for one in (one for rank in ranks for one in _of_rank(rank)):
        key = one.ranks, one.kind, one.of_work
        if key not in found or found[key].step_bytes < one.step_bytes:
            found[key] = one
    return tuple(found.values())


def _of_rank(rank: RankMeasures) -> Iterator[Exchange]:
    rows, groups = rank.others, rank.header.groups
    keys = np.stack((rows.group, rows.name, rows.phase == Phase.FORWARD), axis=1)
    for group, name, forward in distinct_rows(*keys.T):
        members = groups[group].ranks if 0 <= group < len(groups) else ()
        if rank.rank not in members or len(members) < 2:
            continue
        mine = (keys == (group, name, forward)).all(axis=1)
        kind = kind_word(rank.name(name))
        steps, which = np.unique(rows.step[mine], return_inverse=True)
        sums = np.zeros(len(steps), dtype=np.int64)
        np.add.at(sums, which, rows.bytes[mine].clip(0))
        large = bool(sums.max() > NUMBERS_BYTES or (rows.bytes[mine] < 0).any())
        where = rank.name(int(rows.site[mine][0]))
        yield Exchange(
            ranks=frozenset(members),
            kind=kind,
            where=None if where in ("", "?") else where,
            of_work=bool(forward and large and kind != "barrier")
            or kind in POINT_TO_POINT,
            step_bytes=int(sums.max()),
        )


def share_work(found: Collection[Exchange], *ranks: int) -> Exchange | None:
    """What these ranks exchange of their work; None: nothing that was seen."""
    return next((e for e in found if e.of_work and e.ranks.issuperset(ranks)), None)


def kept_alike(
    found: Collection[Exchange], held_bytes: int, *ranks: int
) -> tuple[Exchange, ...]:
    """What the script exchanges between these ranks outside a forward, where it is as
    much as they hold in some step: half of it, where it does so in half the width.
    """
    outside = [e for e in found if not e.of_work and e.ranks.issuperset(ranks)]
    for rank_sets in {e.ranks for e in outside}:
        mine = tuple(e for e in outside if e.ranks == rank_sets)
        if held_bytes > 0 and 2 * sum(e.step_bytes for e in mine) >= held_bytes:
            return mine
    return ()


class Unkept:
    """Of two ranks: whether the script keeps them alike, and what work they share."""

    def __init__(self, found: Collection[Exchange], held_bytes: int) -> None:
        self._found = tuple(found)
        self._held_bytes = held_bytes
        self._of: dict[int, list[int]] = defaultdict(list)  # by rank: its exchanges
        for at, one in enumerate(self._found):
            for rank in one.ranks:
                self._of[rank].append(at)
        self._known: dict[tuple[tuple[int, ...], ...], list[Exchange | None]] = {}

    def kind(self, rank: int) -> tuple[int, ...]:
        """Ranks of one kind exchange the same with the same."""
        return tuple(self._of.get(rank, ()))

    def works(self, a: int, b: int) -> list[Exchange | None]:
        """The work that they share, or None for none; nothing where they are kept
        alike.
        """
        key = self.kind(a), self.kind(b)
        if key not in self._known:
            common = [self._found[at] for at in sorted({*key[0]} & {*key[1]})]
            kept = kept_alike(common, self._held_bytes, a, b)
            self._known[key] = [] if kept else [share_work(common, a, b)]
        return self._known[key]


def kept_apart(one: Replica, unkept: Unkept) -> list[Exchange | None]:
    """For ranks that differ, and that the script does not keep alike, the work that
    they exchange, by their kinds: what exchanges none holds the same, and trains apart.
    """
    pairs = pairs_that_differ(one, unkept.kind)
    return [work for pair in pairs for work in unkept.works(*pair)]
