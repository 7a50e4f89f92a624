"""Which ranks hold alike what they sampled, and since when they do not.

See [Note: Replicas] in `recorder.host.replica_state`. Only samples taken after the same
step are compared. Ranks that exchange activations hold parts of one model, and are no
replicas; ranks whose script reduces as much as they hold are kept alike by it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from fsdpdoctor.analysis.call_sites import kind_word
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.schema import (
    UNKNOWN,
    Phase,
    RankHeader,
    ReplicaKind,
    ReplicaSpec,
    distinct,
    distinct_rows,
    one_of,
)

BEFORE = UNKNOWN
"""The step of a sample taken before the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One thing on the ranks that may have to hold it alike."""

    name: str
    kind: ReplicaKind
    trainable: bool
    ranks: tuple[int, ...]
    steps: tuple[int, ...]  # after which all of these ranks took a sample
    differ_since: int | None  # the first of them with several values; None: none
    changes: bool  # whether its value changes with the steps, on any rank
    camps: tuple[tuple[int, ...], ...]  # ranks that agree at the last of the steps

    @property
    def alike(self) -> bool:
        """Whether all samples agree."""
        return self.differ_since is None

    @property
    def began_alike(self) -> bool:
        """Whether the ranks agreed before the first step."""
        return self.steps[:1] == (BEFORE,) and self.differ_since != BEFORE

    @property
    def drifted(self) -> bool:
        """Whether the ranks agreed before the first step, and no longer do."""
        return self.began_alike and not self.alike


def compared(headers: Sequence[RankHeader]) -> Iterator[Replica]:
    """All that at least two ranks sampled, each thing once.

    A shard is compared with the same part of the same parameter on other ranks.
    """
    held: dict[tuple[object, ...], dict[int, ReplicaSpec]] = defaultdict(dict)
    for header in headers:
        for spec in header.replicas:
            key = (spec.name, spec.kind, spec.shape, spec.shard_index)
            held[key][header.rank] = spec
    for by_rank in held.values():
        if len(by_rank) > 1 and (replica := _replica(by_rank)) is not None:
            yield replica


def _replica(by_rank: dict[int, ReplicaSpec]) -> Replica | None:
    samples = {
        rank: dict(zip(spec.steps, spec.values, strict=True))
        for rank, spec in by_rank.items()
    }
    common = sorted(set.intersection(*(set(values) for values in samples.values())))
    if not common:
        return None
    several = (
        step for step in common if len({held[step] for held in samples.values()}) > 1
    )
    last: dict[str, list[int]] = defaultdict(list)
    for rank, values in samples.items():
        last[values[common[-1]]].append(rank)
    first = next(iter(by_rank.values()))
    return Replica(
        name=first.name,
        kind=ReplicaKind(first.kind),
        trainable=first.trainable,
        ranks=tuple(sorted(by_rank)),
        steps=tuple(common),
        differ_since=next(several, None),
        changes=any(
            len({values[step] for step in common}) > 1 for values in samples.values()
        ),
        camps=tuple(tuple(sorted(ranks)) for ranks in last.values()),
    )


def reaches(headers: Sequence[RankHeader]) -> dict[str, list[tuple[int, ...]]]:
    """For each unit, the sets of ranks that its gradients are reduced over.

    Shard and replicate groups that share a rank are one set: the reduce-scatter and
    the all-reduce after it together reach all of it.
    """
    found: dict[str, list[set[int]]] = defaultdict(list)
    for header in headers:
        for spec in header.units:
            mine = {header.rank}
            for group in (spec.shard_group, spec.replicate_group):
                if 0 <= group < len(header.groups):
                    mine |= set(header.groups[group].ranks)
            sets = found[spec.fqn]
            touching = [one for one in sets if one & mine]
            apart = [one for one in sets if not one & mine]
            found[spec.fqn] = [*apart, mine.union(*touching)]
    return {
        unit: sorted(tuple(sorted(one)) for one in sets) for unit, sets in found.items()
    }


def data_parallel_only(headers: Sequence[RankHeader]) -> bool:
    """Whether units' groups reach every rank: nothing else divides the ranks."""
    ranks = {header.rank for header in headers}
    found = reaches(headers)
    return bool(found) and all(
        len(sets) == 1 and ranks <= set(sets[0]) for sets in found.values()
    )


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


def kept_apart(
    one: Replica, found: Collection[Exchange], held_bytes: int
) -> list[Exchange | None]:
    """For each two ranks that differ, and that the script does not keep alike, the work
    that they exchange: what exchanges none holds the same, and trains apart.
    """
    return [
        share_work(found, *pair)
        for camp, others in combinations(one.camps, 2)
        for pair in product(camp, others)
        if not kept_alike(found, held_bytes, *pair)
    ]
