"""What each rank made the others wait, step by step and place by place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import exp, lgamma, log, log1p
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.call_sites import WaitsForLast, kind_word, waits_for_last
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import UNKNOWN, Kind, Phase, Within, median, one_of


class Where(NamedTuple):
    """A collective's place in the step."""

    what: str  # "all_gather of layers.0", "barrier at train.py:43"
    phase: int
    micro_batch: int
    nth: int  # of those before


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LateRanks:
    """What each rank made the others wait, step by step and place by place."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    caused_ns: Mapping[Where, npt.NDArray[np.float64]]  # [rank, step], mean over ranks
    late: npt.NDArray[np.int64]  # [rank] collectives in which it came last
    told: int  # collectives whose last rank could be told
    others: frozenset[Where]  # of `caused_ns`, those that are not FSDP2's

    @property
    def total_ns(self) -> npt.NDArray[np.float64]:
        """[rank, step] over all places."""
        return self._sum(self.caused_ns)

    @property
    def of_units_ns(self) -> npt.NDArray[np.float64]:
        """[rank, step] over FSDP2's collectives."""
        return self._sum(where for where in self.caused_ns if where not in self.others)

    def _sum(self, places: Iterable[Where]) -> npt.NDArray[np.float64]:
        none = np.zeros((len(self.ranks), len(self.steps)))
        return sum((self.caused_ns[where] for where in places), none)

    def persistent(
        self, chance: float, beyond_noise: float
    ) -> list[dict[Where, npt.NDArray[np.float64]]]:
        """For each rank, the places at which it is late more often than with a chance,
        and by more than so many times its scatter; with [step] by how much later than
        any other.
        """
        found: list[dict[Where, npt.NDArray[np.float64]]] = [{} for _ in self.ranks]
        needed = steps_beyond_chance(
            len(self.steps), 1 / len(self.ranks), chance / max(1, len(self.caused_ns))
        )
        for where, caused in self.caused_ns.items():
            second, most = np.partition(caused, (-2, -1), axis=0)[-2:]
            leads = (caused == most) & (second < most)
            for at in np.flatnonzero(leads.sum(axis=1) >= needed).tolist():
                net = caused[at] - np.where(leads[at], second, most)
                typical = median(net)
                scatter = median(np.abs(net - typical))
                if typical > beyond_noise * scatter:
                    found[at][where] = net
        return found


@cache
def steps_beyond_chance(steps: int, probability: float, chance: float) -> int:
    """In how many steps a rank must be last for it to be no accident.

    The least number that as many independent steps reach with at most the given
    chance; all of them where even that is likelier.
    """
    if probability >= 1:
        return steps
    tail, needed = 0.0, steps
    for late in range(steps, 0, -1):
        # By logarithms: the number of ways alone soon fits into no float.
        ways = lgamma(steps + 1) - lgamma(late + 1) - lgamma(steps - late + 1)
        tail += exp(
            ways + late * log(probability) + (steps - late) * log1p(-probability)
        )
        if tail > chance:
            break
        needed = late
    return needed


def late_ranks(m: Measures) -> LateRanks:
    """Of the steps that are judged on every rank."""
    ranks = tuple(rank.rank for rank in m.ranks)
    common = set.intersection(*(set(r.judged_steps.tolist()) for r in m.ranks))
    steps = tuple(sorted(common))
    place = {rank: at for at, rank in enumerate(ranks)}
    column = {step: at for at, step in enumerate(steps)}
    caused: dict[Where, npt.NDArray[np.float64]] = {}
    others: set[Where] = set()
    late = np.zeros(len(ranks), dtype=np.int64)
    for one in _each_wait(m, steps):
        if one.culprit not in place:
            continue
        if one.where not in caused:
            caused[one.where] = np.zeros((len(ranks), len(steps)))
        at = place[one.culprit], column[one.step]
        caused[one.where][at] += one.ns / len(ranks)
        if one.other:
            others.add(one.where)
    told = 0
    for rank in m.ranks:
        last = m.alignment.last_rank[rank.rank]
        judged = one_of(rank.collectives.step, steps) & (last != UNKNOWN)
        told += int(judged.sum())
        which, times = np.unique(last[judged], return_counts=True)
        for rank_last, often in zip(which.tolist(), times.tolist(), strict=True):
            if rank_last in place:
                late[place[rank_last]] += often
    return LateRanks(
        ranks=ranks,
        steps=steps,
        caused_ns=caused,
        others=frozenset(others),
        late=late,
        told=told,
    )


class _Wait(NamedTuple):
    """What one rank waited at one collective, and for whom."""

    where: Where
    step: int
    culprit: int
    ns: int
    other: bool  # a collective that is not FSDP2's


def _each_wait(m: Measures, steps: tuple[int, ...]) -> Iterator[_Wait]:
    """Every wait of every rank, at FSDP2's collectives and at the others."""
    beside = waits_for_last(m)
    for rank in m.ranks:
        last, nth = m.alignment.last_rank[rank.rank], nth_in_step(rank)
        stalls, waited = rank.stalls, m.causes[rank.rank]["straggler"]
        for row in np.flatnonzero((waited > 0) & one_of(stalls.step, steps)):
            at = int(stalls.collective[row])
            where = _place_in_step(rank, at, int(nth[at]))
            step = int(stalls.step[row])
            yield _Wait(where, step, int(last[at]), int(waited[row]), False)
        yield from _waits_of_others(rank, beside[rank.rank], steps)


def _waits_of_others(
    rank: RankMeasures, waits: WaitsForLast, steps: tuple[int, ...]
) -> Iterator[_Wait]:
    """Not what waits for a save: FD405 has that whole."""
    rows = rank.others
    seen: dict[tuple[int, str, int], int] = {}
    mine = one_of(rows.step, steps) & (rows.within != Within.CHECKPOINT)
    for at in np.flatnonzero(mine).tolist():
        step, phase = int(rows.step[at]), int(rows.phase[at])
        what = kind_word(rank.name(int(rows.name[at])))
        if site := rank.name(int(rows.site[at])):
            what = f"{what} at {site}"
        nth = seen[step, what, phase] = seen.get((step, what, phase), -1) + 1
        culprit, ns = int(waits.last_rank[at]), int(waits.ns[at])
        if ns and culprit != UNKNOWN:
            yield _Wait(Where(what, phase, UNKNOWN, nth), step, culprit, ns, True)


def nth_in_step(rank: RankMeasures) -> Int64s:
    """Of each collective, how many of the same place its step had before it."""
    table = rank.collectives
    count = len(rank.units)
    of_name: dict[str | None, int] = {}
    numbers = [of_name.setdefault(rank.unit_name(at), at) for at in range(count)]
    # One number for one name; the last is for rows that name no unit.
    first = np.array([*numbers, UNKNOWN], dtype=np.int64)
    named = (table.unit >= 0) & (table.unit < count)
    unit = first[np.where(named, table.unit, count)]
    columns = (table.micro_batch, unit, table.phase, table.kind, table.step)
    order = np.lexsort(columns)
    new = np.zeros(len(order), dtype=bool)
    for column in columns:
        new[1:] |= np.diff(column[order]) != 0
    at = np.arange(len(order))
    nth = np.empty(len(order), dtype=np.int64)
    nth[order] = at - np.maximum.accumulate(np.where(new, at, 0))
    return nth


def _place_in_step(rank: RankMeasures, row: int, nth: int) -> Where:
    table = rank.collectives
    unit = rank.unit_name(int(table.unit[row]))
    what = Kind(int(table.kind[row])).key + (f" of {unit}" if unit else "")
    return Where(what, int(table.phase[row]), int(table.micro_batch[row]), nth)


def words_of(where: Where) -> str:
    """A place in the step: `all_gather of layers.0 (forward)`."""
    return f"{where.what} ({Phase(where.phase).key})"
