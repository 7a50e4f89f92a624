"""What was measured by line of the user's code, over the judged steps of all ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import UNKNOWN, Activity, Phase, Within, distinct

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledFrom:
    """Where collectives of one kind come from."""

    where: str | None  # "train.py:43"; None: the source does not say
    via: str | None  # what was called there: "full_tensor"
    kind: str  # "all_reduce"
    group: str | None
    within: Within
    phase: Phase


@dataclass(slots=True, kw_only=True)
class Calls:
    """The collectives of one `CalledFrom`, summed over judged steps and ranks."""

    of_rank: Counter[int] = field(default_factory=Counter)  # how many
    steps: int = 0  # in so many judged steps of one rank
    bytes: int = 0
    sized: int = 0  # of `count`, those of a known size
    ns: int = 0
    exposed_ns: int = 0
    own_ns: int = 0  # of `exposed_ns`, without waiting for the last rank

    @property
    def count(self) -> int:
        return self.of_rank.total()

    @property
    def most(self) -> int:
        """Of one rank."""
        return max(self.of_rank.values(), default=0)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.of_rank))

    def add(self, more: Calls) -> None:
        """Those of another group: a rank may be in both, or in one of them."""
        self.of_rank += more.of_rank
        self.steps = max(self.steps, more.steps)
        self.bytes += more.bytes
        self.sized += more.sized
        self.ns += more.ns
        self.exposed_ns += more.exposed_ns
        self.own_ns += more.own_ns


def calls(m: Measures) -> dict[CalledFrom, Calls]:
    """All collectives that are not FSDP2's, by where they come from."""
    found: dict[CalledFrom, Calls] = defaultdict(Calls)
    waits = waits_for_last(m)
    for rank in m.ranks:
        judged = rank.in_judged(rank.others.step)
        rows, waited_ns = rank.others.rows(judged), waits[rank.rank].ns[judged]
        ids = np.stack(
            (rows.site, rows.via, rows.name, rows.group, rows.within, rows.phase),
            axis=1,
        )
        own_ns = rows.exposed_ns - waited_ns
        keys, which = np.unique(ids, axis=0, return_inverse=True)
        for at, key in enumerate(keys.tolist()):
            mine = which.reshape(-1) == at
            into = found[_called_from(rank, key)]
            sizes = rows.bytes[mine]
            into.of_rank[rank.rank] += int(mine.sum())
            into.steps = max(into.steps, len(distinct(rows.step[mine])))
            into.bytes += int(sizes[sizes != UNKNOWN].sum())
            into.sized += int((sizes != UNKNOWN).sum())
            into.ns += int(rows.duration_ns[mine].sum())
            into.exposed_ns += int(rows.exposed_ns[mine].sum())
            into.own_ns += int(own_ns[mine].sum())
    return dict(found)


def _called_from(rank: RankMeasures, key: list[int]) -> CalledFrom:
    site, via, name, group, within, phase = key
    groups = rank.header.groups
    return CalledFrom(
        where=_known(rank.name(site)),
        via=_known(rank.name(via)),
        kind=kind_word(rank.name(name)),
        group=groups[group].name if 0 <= group < len(groups) else None,
        within=Within(within),
        phase=Phase(phase),
    )


_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


def kind_word(name: str | None) -> str:
    """One word for a collective, whichever its source wrote."""
    if name is None:
        return "collective"
    bare = name.lower().replace("_", "")
    kinds = (kind for start, kind in _KINDS.items() if bare.startswith(start))
    return next(kinds, name)


def _known(text: str | None) -> str | None:
    return None if text in ("", "?") else text


_Matched = tuple[int, int, int]
"""A collective over ranks: step, group (by its place among all) and number in it."""


class WaitsForLast(NamedTuple):
    """Of each collective of a rank that is not FSDP2's, N of them, what of its exposed
    time went by until the last rank had come.
    """

    ns: Int64s  # [N]
    last_rank: Int32s  # [N], UNKNOWN where not told


ALL_WAIT = frozenset(
    ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
)
"""Collectives in which every rank waits for every other one."""


def waits_for_last(m: Measures) -> dict[int, WaitsForLast]:
    """By rank. Who waits least for a collective is its last rank, who waits for nobody:
    the rest of everyone's wait is for it.
    """
    groups = _groups(m)
    least = _least_exposed(m, groups)
    return {rank.rank: _waits(rank, groups[rank.rank], least) for rank in m.ranks}


def _groups(m: Measures) -> dict[int, list[int]]:
    """By rank: which of all groups its own are, whose names may be those of others."""
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    return {
        rank.rank: [
            known.setdefault((group.name, group.ranks), len(known))
            for group in rank.header.groups
        ]
        for rank in m.ranks
    }


def _waits(
    rank: RankMeasures, groups: Sequence[int], least: dict[_Matched, _Least]
) -> WaitsForLast:
    ns = np.zeros(len(rank.others), dtype=np.int64)
    last_rank = np.full(len(rank.others), UNKNOWN, dtype=np.int32)
    for at, (key, exposed) in enumerate(
        zip(_matched(rank, groups), rank.others.exposed_ns.tolist(), strict=True)
    ):
        if key is None:
            continue
        ns[at] = exposed - min(exposed, least[key].exposed_ns)
        if kind_word(rank.name(int(rank.others.name[at]))) in ALL_WAIT:
            last_rank[at] = least[key].rank
    return WaitsForLast(ns, last_rank)


class _Least(NamedTuple):
    """The shortest wait for a collective, and whose it is."""

    exposed_ns: int
    rank: int


def _least_exposed(
    m: Measures, groups: Mapping[int, Sequence[int]]
) -> dict[_Matched, _Least]:
    least: dict[_Matched, _Least] = {}
    for rank in m.ranks:
        waits = rank.others.exposed_ns.tolist()
        matched = _matched(rank, groups[rank.rank])
        for key, exposed in zip(matched, waits, strict=True):
            if key is None:
                continue
            mine = _Least(exposed, rank.rank)
            least[key] = min(least.get(key, mine), mine)
    return least


def _matched(rank: RankMeasures, groups: Sequence[int]) -> Iterator[_Matched | None]:
    rows = rank.others
    columns = (rows.step.tolist(), rows.group.tolist(), rows.seq.tolist())
    for step, group, number in zip(*columns, strict=True):
        known = number != UNKNOWN and 0 <= group < len(groups)
        yield (step, groups[group], number) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GapLine:
    """A line, or two, of the script to which time outside all spans goes."""

    where: str
    until: str | None  # the second of two
    activity: Activity


def gap_lines(m: Measures) -> dict[GapLine, int]:
    """Nanoseconds of judged steps of all ranks, by line, the most first."""
    found: dict[GapLine, int] = defaultdict(int)
    for rank in m.ranks:
        rows = rank.gaps.rows(rank.in_judged(rank.gaps.step))
        for activity, site, until, ns in zip(
            rows.activity.tolist(),
            rows.site.tolist(),
            rows.until.tolist(),
            rows.ns.tolist(),
            strict=True,
        ):
            line = GapLine(
                where=rank.name(site) or "?",
                until=rank.name(until) if until not in (UNKNOWN, site) else None,
                activity=Activity(activity),
            )
            found[line] += ns
    return dict(sorted(found.items(), key=lambda item: -item[1]))
