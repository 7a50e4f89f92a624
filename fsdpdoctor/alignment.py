"""Clocks of ranks, aligned on the collectives they shared.

All ranks of a collective finish together, so per-rank offset and drift come from
matching end times; arrivals are compared only after that. Ranks are paired by
(group, sequence number), never by stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import NO_TIME, UNKNOWN, Flag, GroupSpec, RankHeader
from fsdpdoctor.timeline import Collectives

MIN_MATCHED = 3
"""Fewer shared collectives cannot tell an offset from one late finish."""

DRIFT_SPAN_NS = 10_000_000_000
"""Below 10 s of shared collectives a drift of parts per million is under the noise."""

Key = tuple[str, tuple[int, ...], int, int]
"""A collective across ranks: group name, its ranks, kind, sequence number."""


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

    def keys(self) -> list[Key | None]:
        """Each row's identity across ranks, None where it has none."""
        names = [group_key(group) for group in self.header.groups]
        return [
            (*names[group], int(kind), int(seq))
            if 0 <= group < len(names) and seq != UNKNOWN
            else None
            for group, kind, seq in zip(
                self.collectives.group,
                self.collectives.kind,
                self.collectives.seq,
                strict=True,
            )
        ]


def group_key(group: GroupSpec) -> tuple[str, tuple[int, ...]]:
    """A process group's identity across ranks."""
    return group.name, group.ranks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alignment:
    """The clocks of all ranks, and when the last rank of each collective arrived."""

    clocks: Mapping[int, RankClock]
    last_arrival_ns: Mapping[int, Int64s]  # by rank: [C] on its own clock, NO_TIME:
    # not matched, or not told from the clocks' residual
    last_rank: Mapping[int, npt.NDArray[np.int32]]  # by rank: [C] who arrived last
    spread_ns: Mapping[int, Int64s]  # by rank: [C] last minus first arrival
    unsplit: int = 0  # collectives whose spread is under the clocks' residual

    @property
    def matched(self) -> bool:
        return any(clock.matched for clock in self.clocks.values())


def align(ranks: Sequence[RankCollectives]) -> Alignment:
    """Match collectives over ranks, set the clocks, find the last arrivals."""
    rows_of: dict[Key, dict[int, int]] = {}
    for rank_at, rank in enumerate(ranks):
        for row, key in enumerate(rank.keys()):
            if key is not None:
                rows_of.setdefault(key, {})[rank_at] = row
    shared = {key: rows for key, rows in rows_of.items() if len(rows) > 1}
    clocks = _clocks(ranks, shared)
    count = [len(rank.collectives) for rank in ranks]
    last_ns = [np.full(n, NO_TIME, dtype=np.int64) for n in count]
    last_rank = [np.full(n, UNKNOWN, dtype=np.int32) for n in count]
    spread = [np.zeros(n, dtype=np.int64) for n in count]
    starts = [
        clock.to_reference(rank.collectives.start_ns)
        for clock, rank in zip(clocks, ranks, strict=True)
    ]
    unsplit = 0
    for rows in shared.values():
        arrivals = {at: int(starts[at][row]) for at, row in rows.items()}
        last_at = max(arrivals, key=lambda at: arrivals[at])
        width = arrivals[last_at] - min(arrivals.values())
        noise = max(clocks[at].uncertainty_ns for at in rows)
        told = width > noise
        unsplit += not told
        for at, row in rows.items():
            spread[at][row] = width
            if told:
                last_rank[at][row] = ranks[last_at].header.rank
                last_ns[at][row] = arrivals[last_at]
    own = {}
    for clock, rank, times in zip(clocks, ranks, last_ns, strict=True):
        local = clock.from_reference(times)
        own[rank.header.rank] = np.where(times == NO_TIME, NO_TIME, local)
    by_rank = [rank.header.rank for rank in ranks]
    return Alignment(
        clocks=dict(zip(by_rank, clocks, strict=True)),
        last_arrival_ns=own,
        last_rank=dict(zip(by_rank, last_rank, strict=True)),
        spread_ns=dict(zip(by_rank, spread, strict=True)),
        unsplit=unsplit,
    )


def _clocks(
    ranks: Sequence[RankCollectives], shared: Mapping[Key, Mapping[int, int]]
) -> list[RankClock]:
    """A clock per rank, set against the first rank it can be matched with.

    Ranks that share no group with the reference (HSDP) are reached through one
    that does.
    """
    clocks: dict[int, RankClock] = {}
    pending = list(range(len(ranks)))
    if not pending:
        return []
    clocks[0] = RankClock(rank=ranks[0].header.rank, residual_ns=None)
    pending.remove(0)
    progress = True
    while pending and progress:
        progress = False
        for at in list(pending):
            ends = _matched_ends(ranks, shared, at, clocks)
            if len(ends) < MIN_MATCHED:
                continue
            clocks[at] = _fit(
                ranks[at], ends, _same_clock(ranks[at].header, ranks[0].header)
            )
            pending.remove(at)
            progress = True
    for at in pending:
        clocks[at] = RankClock(rank=ranks[at].header.rank)
    residuals = [c.residual_ns for c in clocks.values() if c.residual_ns is not None]
    if residuals:
        # The reference is as uncertain as what was matched with it.
        clocks[0] = RankClock(
            rank=clocks[0].rank,
            residual_ns=int(np.median(residuals)),
            matched=max(c.matched for c in clocks.values()),
            exact=all(c.exact for at, c in clocks.items() if at),
        )
    return [clocks[at] for at in range(len(ranks))]


def _same_clock(one: RankHeader, other: RankHeader) -> bool:
    """Whether two ranks read one clock: processes of one host, on the host's clock."""
    return (
        one.clock == other.clock == "host"
        and one.host is not None
        and one.host == other.host
    )


def _matched_ends(
    ranks: Sequence[RankCollectives],
    shared: Mapping[Key, Mapping[int, int]],
    at: int,
    clocks: Mapping[int, RankClock],
) -> Int64s:
    """[M, 2]: this rank's end, and the reference time of the same end elsewhere."""
    pairs: list[tuple[int, int]] = []
    ends = ranks[at].collectives.end_ns
    estimated = ranks[at].collectives.flags & Flag.END_ESTIMATED
    for rows in shared.values():
        if at not in rows or estimated[rows[at]]:
            continue
        known = [other for other in rows if other in clocks]
        if not known:
            continue
        other = min(known)
        row = rows[other]
        if ranks[other].collectives.flags[row] & Flag.END_ESTIMATED:
            continue
        there = ranks[other].collectives.end_ns[row : row + 1]
        pairs.append((int(ends[rows[at]]), int(clocks[other].to_reference(there)[0])))
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def _fit(rank: RankCollectives, ends: Int64s, same_clock: bool) -> RankClock:
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
        rank=rank.header.rank,
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
