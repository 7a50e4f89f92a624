"""Which ranks hold alike what they sampled, and since when they do not.

See [Note: Replicas] in `recorder.host.replica_state`. Only samples taken after the same
step are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, islice

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


MOST_KINDS = 256
"""Of ranks whose pairs are looked at: a mesh of 4,096 ranks could have 8 million."""


def pairs_that_differ(
    one: Replica, kind_of: Callable[[int], Hashable]
) -> Iterator[tuple[int, int]]:
    """Two ranks of different camps for each two kinds of ranks that have such: what is
    asked of two ranks is answered alike for all others of their kinds.
    """
    camps: dict[Hashable, dict[int, int]] = defaultdict(dict)  # by kind: camp, a rank
    for number, camp in enumerate(one.camps):
        for rank in camp:
            camps[kind_of(rank)].setdefault(number, rank)
    looked_at = list(islice(camps.values(), MOST_KINDS))
    for mine, others in combinations_with_replacement(looked_at, 2):
        pair = next(
            (
                (a, b)
                for camp, a in islice(mine.items(), 2)
                for other, b in islice(others.items(), 2)
                if camp != other
            ),
            None,
        )
        if pair is not None:
            yield pair
