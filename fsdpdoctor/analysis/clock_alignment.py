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

from fsdpdoctor.analysis.by_rank import ByRank, LastOf
from fsdpdoctor.analysis.timeline import Collectives
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import NO_TIME, UNKNOWN, Flag, GroupSpec, RankHeader, median

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
    others: Mapping[int, Arrivals]  # by rank, of `RankCollectives.others`
    unsplit: int = 0  # collectives whose spread is under the clocks' residual

    @property
    def matched(self) -> bool:
        return any(clock.matched for clock in self.clocks.values())


@dataclass(slots=True, kw_only=True, eq=False)
class _Matched:
    """The rows of a rank that have a key, N of them, ascending by key.

    A key is (group's identity, kind, sequence number), by its number. Ranks that
    issued the same share the two arrays.
    """

    key: npt.NDArray[np.int32]  # [N]
    row: npt.NDArray[np.int32]  # [N] of that rank's collectives, the first of its key

    def times(self, rank: RankCollectives) -> tuple[Int64s, Int64s]:
        """Starts, and ends: NO_TIME where one is only estimated."""
        rows = rank.every
        estimated = rows.flags[self.row] & Flag.END_ESTIMATED != 0
        end_ns = np.where(estimated, NO_TIME, rows.end_ns[self.row])
        return rows.start_ns[self.row], end_ns


class _Arrived(NamedTuple):
    """When the last rank arrived, by key: [K]."""

    last_ns: Int64s  # on the reference's clock
    last_at: npt.NDArray[np.int32]  # of several together the first
    told: npt.NDArray[np.bool_]  # the clocks are near enough to tell them apart


def align(ranks: Sequence[RankCollectives]) -> Alignment:
    """Match collectives over ranks, set the clocks, find the last arrivals.

    A rank at a time: what is held of all of them has a row for each collective of the
    job, and not one for each rank of each collective.
    """
    matched, keys = _match(ranks)
    clocks = _clocks(ranks, matched, keys)
    arrived = _arrived(ranks, matched, clocks, keys)
    numbers = np.array([rank.header.rank for rank in ranks], dtype=np.int32)
    counts = [(len(rank.collectives), len(rank.others)) for rank in ranks]
    place = {int(number): at for at, number in enumerate(numbers)}

    def columns(rank: int) -> tuple[Int64s, npt.NDArray[np.int32]]:
        at = place[rank]
        rows = matched[at]
        count = sum(counts[at])
        last_ns = np.full(count, NO_TIME)
        last_rank = np.full(count, UNKNOWN, dtype=np.int32)
        known = arrived.told[rows.key]
        key, row = rows.key[known], rows.row[known]
        last_ns[row] = clocks[at].from_reference(arrived.last_ns[key])
        last_rank[row] = numbers[arrived.last_at[key]]
        return last_ns, last_rank

    of_rank = LastOf(columns)
    own = {rank: count for rank, (count, _) in zip(place, counts, strict=True)}
    return Alignment(
        clocks={clock.rank: clock for clock in clocks},
        last_arrival_ns=ByRank(place, lambda rank: of_rank(rank)[0][: own[rank]]),
        last_rank=ByRank(place, lambda rank: of_rank(rank)[1][: own[rank]]),
        others=ByRank(
            place,
            lambda rank: Arrivals(
                of_rank(rank)[0][own[rank] :], of_rank(rank)[1][own[rank] :]
            ),
        ),
        unsplit=int((~arrived.told).sum()),
    )


def _arrived(
    ranks: Sequence[RankCollectives],
    matched: Sequence[_Matched],
    clocks: Sequence[RankClock],
    keys: int,
) -> _Arrived:
    first = np.full(keys, np.iinfo(np.int64).max)
    last = np.full(keys, NO_TIME)
    last_at = np.full(keys, UNKNOWN, dtype=np.int32)
    most_noise = np.zeros(keys, dtype=np.int64)
    for at, (rank, rows, clock) in enumerate(zip(ranks, matched, clocks, strict=True)):
        arrival = clock.to_reference(rows.times(rank)[0])
        first[rows.key] = np.minimum(first[rows.key], arrival)
        most_noise[rows.key] = np.maximum(most_noise[rows.key], clock.uncertainty_ns)
        later = arrival > last[rows.key]
        last[rows.key[later]] = arrival[later]
        last_at[rows.key[later]] = at
    return _Arrived(last, last_at, last - first > most_noise)


def _match(ranks: Sequence[RankCollectives]) -> tuple[list[_Matched], int]:
    """Pair rows over ranks by group, kind and sequence number; and how many keys there
    are that at least two ranks have.
    """
    identities: dict[tuple[str, tuple[int, ...]], int] = {}
    keys: dict[tuple[int, ...], int] = {}
    of_content: dict[bytes, _Matched] = {}
    found: list[_Matched] = []
    times: list[int] = []  # by key, how many ranks have it
    for rank in ranks:
        rows = rank.every
        ids = [
            identities.setdefault(group_key(g), len(identities)) for g in rank.groups
        ]
        known = (rows.seq != UNKNOWN) & (rows.group >= 0) & (rows.group < len(ids))
        row = np.flatnonzero(known)
        names = (np.array(ids, dtype=np.int64)[rows.group[row]], rows.kind[row])
        named = np.stack([*names, rows.seq[row], row], axis=1).astype(np.int64)
        # Nearly all ranks of a job issue the same in the same order.
        content = named.tobytes()
        same = of_content.get(content)
        if same is None:
            same = of_content[content] = _first_of_each(named, keys)
            times += [0] * (len(keys) - len(times))
        for key in same.key.tolist():
            times[key] += 1
        found.append(same)
    several = np.array(times, dtype=np.int64) > 1
    number = np.cumsum(several) - 1
    for same in of_content.values():
        kept = several[same.key]
        same.row = same.row[kept]
        same.key = number[same.key[kept]].astype(np.int32)
    return found, int(several.sum())


def _first_of_each(named: Int64s, keys: dict[tuple[int, ...], int]) -> _Matched:
    """Of [N, 4] group, kind, number and row: a rank counts once per key, its first
    row, since a source may number twice.
    """
    named = named[np.lexsort(named.T[::-1])]
    differs = np.ones(len(named), dtype=bool)
    differs[1:] = (named[1:, :3] != named[:-1, :3]).any(axis=1)
    named = named[differs]
    key = [keys.setdefault(tuple(one), len(keys)) for one in named[:, :3].tolist()]
    return _Matched(key=np.array(key, dtype=np.int32), row=named[:, 3].astype(np.int32))


def _clocks(
    ranks: Sequence[RankCollectives], matched: Sequence[_Matched], keys: int
) -> list[RankClock]:
    """A clock per rank, set against the first rank.

    Ranks that share no group with it (HSDP) are reached through one that does.
    """
    if not ranks:
        return []
    reference_end = np.full(keys, NO_TIME)  # [K] on the reference's clock
    clocks = {0: RankClock(rank=ranks[0].header.rank)}
    _set_ends(reference_end, matched[0], ranks[0], clocks[0])
    progress = True
    while len(clocks) < len(ranks) and progress:
        progress = False
        for at, rank in enumerate(ranks):
            if at in clocks:
                continue
            ends = _matched_ends(matched[at], rank, reference_end)
            if len(ends) < MIN_MATCHED:
                continue
            same = _same_clock(rank.header, ranks[0].header)
            clocks[at] = _fit(rank.header.rank, ends, same)
            _set_ends(reference_end, matched[at], rank, clocks[at])
            progress = True
    for at, rank in enumerate(ranks):
        clocks.setdefault(at, RankClock(rank=rank.header.rank))
    others = [clock for at, clock in clocks.items() if at and clock.matched]
    if others:
        # The reference is as uncertain as what was matched with it.
        clocks[0] = RankClock(
            rank=clocks[0].rank,
            residual_ns=int(median([c.residual_ns or 0 for c in others])),
            matched=max(c.matched for c in others),
            exact=all(c.exact for c in others),
        )
    return [clocks[at] for at in range(len(ranks))]


def _set_ends(
    reference_end: Int64s, rows: _Matched, rank: RankCollectives, clock: RankClock
) -> None:
    """Fill in, from a rank whose clock is known, the ends that no other gave."""
    ends = rows.times(rank)[1]
    new = (ends != NO_TIME) & (reference_end[rows.key] == NO_TIME)
    reference_end[rows.key[new]] = clock.to_reference(ends[new])


def _matched_ends(
    rows: _Matched, rank: RankCollectives, reference_end: Int64s
) -> Int64s:
    """[M, 2] by time: a rank's end, and the reference time of the same end."""
    ends = rows.times(rank)[1]
    there = reference_end[rows.key]
    known = (there != NO_TIME) & (ends != NO_TIME)
    pairs = np.stack((ends[known], there[known]), axis=1)
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
        offset = int(median(distance))
        span = int(ends[-1, 0] - ends[0, 0])
        if span > DRIFT_SPAN_NS:
            # Theil-Sen on halves: robust against the late finishes of single ranks.
            half = len(ends) // 2
            rise = median(distance[half:]) - median(distance[:half])
            run = median(ends[half:, 0]) - median(ends[:half, 0])
            drift_ppb = round(rise / run * 1e9)
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
        residual_ns=int(median(left)),
        matched=len(ends),
        exact=same_clock,
    )
