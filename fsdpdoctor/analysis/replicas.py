"""Which ranks hold alike what they sampled, and since when they do not.

See [Note: Replicas] in `recorder.host.replica_state`. Only samples taken after the same
step are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.script_exchange import POINT_TO_POINT
from fsdpdoctor.schema import UNKNOWN, RankHeader, ReplicaKind, ReplicaSpec

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


def reaches(headers: Sequence[RankHeader], unit: str) -> list[tuple[int, ...]]:
    """The sets of ranks that a unit's gradients are reduced over.

    Shard and replicate groups that share a rank are one set: the reduce-scatter and
    the all-reduce after it together reach all of it.
    """
    sets: list[set[int]] = []
    for header in headers:
        for spec in header.units:
            if spec.fqn != unit:
                continue
            mine = {header.rank}
            for group in (spec.shard_group, spec.replicate_group):
                if 0 <= group < len(header.groups):
                    mine |= set(header.groups[group].ranks)
            touching = [one for one in sets if one & mine]
            sets = [one for one in sets if not one & mine]
            sets.append(mine.union(*touching))
    return sorted(tuple(sorted(one)) for one in sets)


def data_parallel_only(headers: Sequence[RankHeader]) -> bool:
    """Whether units' groups reach every rank: nothing else divides the ranks."""
    ranks = {header.rank for header in headers}
    units = {spec.fqn for header in headers for spec in header.units}
    return bool(units) and all(
        len(found := reaches(headers, unit)) == 1 and ranks <= set(found[0])
        for unit in units
    )


def stages(ranks: Sequence[RankMeasures]) -> dict[int, int]:
    """The stage of each rank that sends or receives, as a pipeline's do: its place in
    the group.
    """
    found: dict[int, int] = {}
    for rank in ranks:
        names = [at for at, name in enumerate(rank.names) if name in POINT_TO_POINT]
        used = np.unique(rank.others.group[np.isin(rank.others.name, names)])
        for group in used[(used >= 0) & (used < len(rank.header.groups))].tolist():
            members = rank.header.groups[group].ranks
            if rank.rank in members:
                found[rank.rank] = members.index(rank.rank)
    return found
