"""Clocks of ranks, aligned on the collectives they shared.

All ranks of a collective finish together, so per-rank offset and drift come from
matching end times; arrivals are compared only after that. Ranks are paired by
(group, sequence number), never by stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.timeline import Collectives
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import NO_TIME, UNKNOWN, Flag, GroupSpec, RankHeader

MIN_MATCHED = 3
"""Fewer shared collectives cannot tell an offset from one late finish."""

DRIFT_SPAN_NS = 10_000_000_000
"""Below 10 s of shared collectives a drift of parts per million is under the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """How one rank's clock relates to the reference rank's."""

    rank: int
    offset_ns: int = 0  # subtract from this rank's time for the reference's
    drift_ppb: int = 0  # offset growth, ns per second
    drift_from_ns: int = 0  # where the offset holds exactly
    residual_ns: int | None = None  # median distance of matched ends; None: no match
    matched: int = 0
    exact: bool = False  # the same clock as the reference: nothing to estimate

    @property
    def uncertainty_ns(self) -> int:
        """Below this, two ranks' times cannot be told apart."""
        return 0 if self.exact else self.residual_ns or 0

    def to_reference(self, time_ns: Int64s) -> Int64s:
        """Times of this rank on the reference rank's clock."""
        grown = (time_ns - self.drift_from_ns) * (self.drift_ppb * 1e-9)
        aligned: Int64s = time_ns - self.offset_ns - np.rint(grown).astype(np.int64)
        return aligned

    def from_reference(self, time_ns: Int64s) -> Int64s:
        """Times of the reference rank on this rank's clock."""
        local = time_ns + self.offset_ns
        grown = (local - self.drift_from_ns) * (self.drift_ppb * 1e-9)
        own: Int64s = local + np.rint(grown).astype(np.int64)
        return own


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankCollectives:
    """What alignment needs of one rank."""

    header: RankHeader
    collectives: Collectives
    others: Collectives = field(default_factory=lambda: Collectives.build(0))

    @property
    def every(self) -> Collectives:
        """FSDP2's collectives, and after them the others."""
        if not len(self.others):
            return self.collectives
        return Collectives.concat([self.collectives, self.others])

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        return self.header.groups


def group_key(group: GroupSpec) -> tuple[str, tuple[int, ...]]:
    """A process group's identity across ranks."""
    return group.name, group.ranks


class Arrivals(NamedTuple):
    """Of some collectives of a rank, when and who the last rank was that arrived."""

    last_arrival_ns: Int64s  # on its own clock, NO_TIME where not told
    last_rank: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alignment:
    """The clocks of all ranks, and when the last rank of each collective arrived."""

    clocks: Mapping[int, RankClock]
    last_arrival_ns: Mapping[int, Int64s]  # by rank: [C] on its own clock, NO_TIME:
    # not matched, or not told from the clocks' residual
    last_rank: Mapping[int, npt.NDArray[np.int32]]  # by rank: [C] who arrived last
    spread_ns: Mapping[int, Int64s]  # by rank: [C] last minus first arrival
    others: Mapping[int, Arrivals]  # by rank, of `RankCollectives.others`
    unsplit: int = 0  # collectives whose spread is under the clocks' residual

    @property
    def matched(self) -> bool:
        return any(clock.matched for clock in self.clocks.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shared:
    """The collectives that at least two ranks took part in, M rows of K keys.

    A key is (group's identity, kind, sequence number). Rows ascend by key.
    """

    key: Int64s  # [M]
    at: npt.NDArray[np.intp]  # [M] which of the ranks
    row: npt.NDArray[np.intp]  # [M] of that rank's collectives
    start_ns: Int64s  # [M]
    end_ns: Int64s  # [M] NO_TIME where it is only estimated
    keys: int  # K

    def of(self, at: int) -> npt.NDArray[np.intp]:
        """The rows of one rank."""
        return np.flatnonzero(self.at == at)


def align(ranks: Sequence[RankCollectives]) -> Alignment:
    """Match collectives over ranks, set the clocks, find the last arrivals."""
    shared = _match(ranks)
    clocks = _clocks(ranks, shared)
    arrival = np.empty(len(shared.key), dtype=np.int64)
    noise = np.empty(len(shared.key), dtype=np.int64)
    for at, clock in enumerate(clocks):
        mine = shared.of(at)
        arrival[mine] = clock.to_reference(shared.start_ns[mine])
        noise[mine] = clock.uncertainty_ns
    first = np.full(shared.keys, np.iinfo(np.int64).max)
    last = np.full(shared.keys, NO_TIME)
    most_noise = np.zeros(shared.keys, dtype=np.int64)
    np.minimum.at(first, shared.key, arrival)
    np.maximum.at(last, shared.key, arrival)
    np.maximum.at(most_noise, shared.key, noise)
    told = last - first > most_noise
    last_at = np.full(shared.keys, UNKNOWN)
    # Of several ranks that arrived last together, the lowest is named.
    for row in np.flatnonzero(arrival == last[shared.key])[::-1]:
        last_at[shared.key[row]] = shared.at[row]
    by_rank: dict[int, tuple[Int64s, npt.NDArray[np.int32], Int64s]] = {}
    others: dict[int, Arrivals] = {}
    numbers = np.array([rank.header.rank for rank in ranks], dtype=np.int32)
    for at, (clock, rank) in enumerate(zip(clocks, ranks, strict=True)):
        own = len(rank.collectives)
        count = own + len(rank.others)
        last_ns = np.full(count, NO_TIME)
        last_rank = np.full(count, UNKNOWN, dtype=np.int32)
        spread = np.zeros(count, dtype=np.int64)
        mine = shared.of(at)
        key, row = shared.key[mine], shared.row[mine]
        spread[row] = (last - first)[key]
        known = told[key]
        key, row = key[known], row[known]
        last_ns[row] = clock.from_reference(last[key])
        last_rank[row] = numbers[last_at[key]]
        by_rank[rank.header.rank] = (last_ns[:own], last_rank[:own], spread[:own])
        others[rank.header.rank] = Arrivals(last_ns[own:], last_rank[own:])
    return Alignment(
        clocks={clock.rank: clock for clock in clocks},
        last_arrival_ns={rank: columns[0] for rank, columns in by_rank.items()},
        last_rank={rank: columns[1] for rank, columns in by_rank.items()},
        spread_ns={rank: columns[2] for rank, columns in by_rank.items()},
        others=others,
        unsplit=int((~told).sum()),
    )


def _match(ranks: Sequence[RankCollectives]) -> _Shared:
    """Pair rows over ranks by group, kind and sequence number."""
    identities: dict[tuple[str, tuple[int, ...]], int] = {}
    parts: list[Int64s] = []  # [n, 7]: group, kind, seq, at, row, start, end
    for at, rank in enumerate(ranks):
        rows = rank.every
        ids = [
            identities.setdefault(group_key(g), len(identities)) for g in rank.groups
        ]
        known = (rows.seq != UNKNOWN) & (rows.group >= 0) & (rows.group < len(ids))
        row = np.flatnonzero(known)
        estimated = rows.flags[row] & Flag.END_ESTIMATED != 0
        columns = (
            np.array(ids, dtype=np.int64)[rows.group[row]],
            rows.kind[row],
            rows.seq[row],
            np.full(len(row), at),
            row,
            rows.start_ns[row],
            np.where(estimated, NO_TIME, rows.end_ns[row]),
        )
        parts.append(np.stack([c.astype(np.int64) for c in columns], axis=1))
    table = np.concatenate(parts) if parts else np.empty((0, 7), dtype=np.int64)
    table = table[np.lexsort(table[:, 3::-1].T)]
    # A rank counts once per key, its first row: a source may number twice.
    new_rank = _changes(table[:, :4])
    table = table[new_rank]
    key = np.cumsum(_changes(table[:, :3])) - 1
    several = np.bincount(key)[key] > 1 if len(key) else key == 0
    table, key = table[several], key[several]
    names, key = np.unique(key, return_inverse=True)
    return _Shared(
        key=key.astype(np.int64),
        at=table[:, 3].astype(np.intp),
        row=table[:, 4].astype(np.intp),
        start_ns=table[:, 5],
        end_ns=table[:, 6],
        keys=len(names),
    )


def _changes(table: Int64s) -> npt.NDArray[np.bool_]:
    """Which rows differ from the one before; the first does."""
    differs = np.ones(len(table), dtype=bool)
    differs[1:] = (table[1:] != table[:-1]).any(axis=1)
    return differs


def _clocks(ranks: Sequence[RankCollectives], shared: _Shared) -> list[RankClock]:
    """A clock per rank, set against the first rank.

    Ranks that share no group with it (HSDP) are reached through one that does.
    """
    if not ranks:
        return []
    reference_end = np.full(shared.keys, NO_TIME)  # [K] on the reference's clock
    clocks = {0: RankClock(rank=ranks[0].header.rank)}
    _set_ends(reference_end, shared, 0, clocks[0])
    pending = list(range(1, len(ranks)))
    progress = True
    while pending and progress:
        progress = False
        for at in list(pending):
            ends = _matched_ends(shared, at, reference_end)
            if len(ends) < MIN_MATCHED:
                continue
            same = _same_clock(ranks[at].header, ranks[0].header)
            clocks[at] = _fit(ranks[at].header.rank, ends, same)
            _set_ends(reference_end, shared, at, clocks[at])
            pending.remove(at)
            progress = True
    for at in pending:
        clocks[at] = RankClock(rank=ranks[at].header.rank)
    others = [clock for at, clock in clocks.items() if at and clock.matched]
    if others:
        # The reference is as uncertain as what was matched with it.
        clocks[0] = RankClock(
            rank=clocks[0].rank,
            residual_ns=int(np.median([c.residual_ns or 0 for c in others])),
            matched=max(c.matched for c in others),
            exact=all(c.exact for c in others),
        )
    return [clocks[at] for at in range(len(ranks))]


def _set_ends(
    reference_end: Int64s, shared: _Shared, at: int, clock: RankClock
) -> None:
    """Fill in, from a rank whose clock is known, the ends that no other gave."""
    mine = shared.of(at)
    mine = mine[shared.end_ns[mine] != NO_TIME]
    mine = mine[reference_end[shared.key[mine]] == NO_TIME]
    reference_end[shared.key[mine]] = clock.to_reference(shared.end_ns[mine])


def _matched_ends(shared: _Shared, at: int, reference_end: Int64s) -> Int64s:
    """[M, 2] by time: a rank's end, and the reference time of the same end."""
    mine = shared.of(at)
    there = reference_end[shared.key[mine]]
    known = (there != NO_TIME) & (shared.end_ns[mine] != NO_TIME)
    pairs = np.stack((shared.end_ns[mine][known], there[known]), axis=1)
    ordered: Int64s = pairs[np.argsort(pairs[:, 0], kind="stable")]
    return ordered


def _same_clock(one: RankHeader, other: RankHeader) -> bool:
    """Whether two ranks read one clock: processes of one host, on the host's clock."""
    return (
        one.clock == other.clock == "host"
        and one.host is not None
        and one.host == other.host
    )


def _fit(rank: int, ends: Int64s, same_clock: bool) -> RankClock:
    """Offset, drift and residual from matched ends [M, 2]."""
    distance = ends[:, 0] - ends[:, 1]
    middle = int(ends[len(ends) // 2, 0])
    offset, drift_ppb = 0, 0
    if not same_clock:
        offset = int(np.median(distance))
        span = int(ends[-1, 0] - ends[0, 0])
        if span > DRIFT_SPAN_NS:
            # Theil-Sen on halves: robust against the late finishes of single ranks.
            half = len(ends) // 2
            rise = np.median(distance[half:]) - np.median(distance[:half])
            run = np.median(ends[half:, 0]) - np.median(ends[:half, 0])
            drift_ppb = round(float(rise) / float(run) * 1e9)
    clock = RankClock(
        rank=rank,
        offset_ns=offset,
        drift_ppb=drift_ppb,
        drift_from_ns=middle,
        matched=len(ends),
    )
    left = np.abs(clock.to_reference(ends[:, 0]) - ends[:, 1])
    return RankClock(
        rank=clock.rank,
        offset_ns=offset,
        drift_ppb=drift_ppb,
        drift_from_ns=middle,
        residual_ns=int(np.median(left)),
        matched=len(ends),
        exact=same_clock,
    )
