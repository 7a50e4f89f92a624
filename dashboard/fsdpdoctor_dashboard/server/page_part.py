"""What of a run goes into one file: its first steps, and of many ranks some."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fsdpdoctor_dashboard.data.initial_view import steps_of
from fsdpdoctor_dashboard.data.slices import RankFacts
from fsdpdoctor_dashboard.data.store import Series, Store

MARK_LIMIT = 100_000
"""Marks that are embedded unless all are asked for: about 1 MB of a page, ten bytes
each.
"""
LEAST_STEPS = 4
"""Of which there must be room; for that, ranks are left out."""
EXTREMES = 4
"""Ranks that stay because they wait most, and as many that wait least: for these the
others wait.
"""


def part_of(store: Store, limit: int, wanted: Sequence[int]) -> Store:
    """A run's first steps, of ranks that stand out where it has many; a run that has
    room for all is itself. `wanted` are ranks that readers are led to.
    """
    return shortened(fewer_ranks(store, limit, wanted), limit)


def fewer_ranks(store: Store, limit: int, wanted: Sequence[int]) -> Store:
    """The run of as many ranks as have room for LEAST_STEPS, at least one: those that
    are wanted, those that wait most and least, others spread evenly.
    """
    if not store.ranks:
        return store
    counts = [_first_steps(store, rank) for rank in store.ranks]
    if sum(counts) <= limit:
        return store
    room = max(1, limit * len(counts) // sum(counts))
    chosen = _chosen(store.ranks, store.facts, room, wanted)
    return _holding(store, [s for rank in chosen for s in store.series(rank)], chosen)


def shortened(store: Store, limit: int) -> Store:
    """The run's first steps, as many as have at most `limit` marks; at least one."""
    every = [s for rank in store.ranks for s in store.series(rank)]
    if sum(len(s.start) for s in every) <= limit or not store.ranks:
        return store
    ruler = next(filter(None, (steps_of(store, rank) for rank in store.ranks)), None)
    if ruler is None:
        return store
    ends = ruler.start + ruler.length
    counts = [sum(_marks(s, int(end)) for s in every) for end in ends]
    kept = max(1, int(np.searchsorted(counts, limit, "right")))
    return _until(store, every, int(ends[min(kept, len(ends)) - 1]))


def _marks(series: Series, end: int) -> int:
    here = series.between(0, end)
    return int(here.stop - here.start)


def _first_steps(store: Store, rank: int) -> int:
    """How many marks a rank has in its first steps."""
    steps = steps_of(store, rank)
    if steps is None:
        return sum(len(s.start) for s in store.series(rank))
    at = min(LEAST_STEPS, len(steps.start)) - 1
    end = int(steps.start[at]) + int(steps.length[at])
    return sum(_marks(s, end) for s in store.series(rank))


def _chosen(
    ranks: Sequence[int],
    facts: Mapping[int, RankFacts],
    room: int,
    wanted: Sequence[int],
) -> list[int]:
    """So many ranks, in their order."""
    chosen = dict.fromkeys(rank for rank in wanted if rank in facts)
    waits = [(facts[rank].exposed_share, rank) for rank in ranks]
    known = [rank for _, rank in sorted((w, r) for w, r in waits if w is not None)]
    chosen |= dict.fromkeys([*known[:EXTREMES], *known[-EXTREMES:]])
    rest = [rank for rank in ranks if rank not in chosen]
    more = min(max(room - len(chosen), 0), len(rest))
    spread = np.linspace(0, len(rest) - 1, more).astype(np.int64)
    chosen |= dict.fromkeys(rest[at] for at in spread.tolist())
    return sorted([*chosen][:room])


def _until(store: Store, every: Iterable[Series], end: int) -> Store:
    series = []
    for s in every:
        here = s.between(0, end)
        if here.stop <= here.start:
            continue
        length = s.length[here].astype(np.int64)
        length = np.minimum(length, end - s.start[here])
        series.append(
            Series(
                rank=s.rank,
                series=s.series,
                start=s.start[here],
                length=length,
                total=s.total[here],
                span=s.span[here],
                unit=s.unit[here],
                starts=s.starts[: int(np.searchsorted(s.starts, end))],
            )
        )
    return _holding(store, series, store.ranks)


def _holding(store: Store, series: Sequence[Series], ranks: Sequence[int]) -> Store:
    """These series of a run, and what is said of these ranks."""
    tables = {"spans": store.spans, "exposed": store.exposed, "memory": store.memory}
    return Store(
        fingerprint=store.fingerprint,
        origin_ns=store.origin_ns,
        series=series,
        tables={
            name: {rank: table[rank] for rank in ranks if rank in table}
            for name, table in tables.items()
        },
        names={rank: store.names[rank] for rank in ranks},
        facts={rank: store.facts[rank] for rank in ranks},
    )
