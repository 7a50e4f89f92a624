"""FD401: the others wait for one rank, step after step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import exp, lgamma, log, log1p
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.call_sites import (
    WaitsForLast,
    gap_lines,
    kind_word,
    waits_for_last,
)
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import MIN_JUDGED_STEPS, RankMeasures
from fsdpdoctor.analysis.step_budget import PARTS
from fsdpdoctor.detectors.base import STALLS_KNOWN, CannotTell, detector, level
from fsdpdoctor.detectors.judged_steps import per_step, steady
from fsdpdoctor.finding import Advice, Confidence, Finding, Location, Severity
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.quantities import ms, of_step, percent
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind, Phase, Within, median, one_of

# Of the step, lost to one rank by the mean rank; to be calibrated on the gallery.
# 5 % is what FD101 warns at: waiting for a rank is exposed time like any other.
WARNING_SHARE, CRITICAL_SHARE = 0.05, 0.15

# At each place of the step apart, a rank must be last in more steps than chance makes
# it: what makes a rank late does so at the same place in every step, a busy machine
# here and there. The usual 5 %, shared by all places of the step, since each of them
# is one more chance to be wrong. With six processes per core, 60 % of the steps (a
# fixed share, as in public reports) named a healthy rank in one job of three.
CHANCE = 0.05

# At such a place the median lateness must stand out of its own scatter between
# steps (median absolute deviation). Seen with five busy processes per core: 4.0 where
# a rank slept for 60 ms. Chance reaches that too, with medians of 1 % of the step.
BEYOND_NOISE = 2.0

# More tokens than the others' mean by this share explain a late rank.
MORE_TOKENS = 1.10

# Parts of the budget that say what a late rank did while the others waited.
OWN_PARTS = tuple(
    part for part in PARTS if not part.startswith("exposed_") and part != "no_grad"
)

WORDS = {
    "input": "waiting in its data loader",
    "gc": "collecting garbage",
    "checkpoint": "saving or loading a checkpoint",
    "optimizer": "in its optimizer",
    "forward": "in its forward",
    "backward": "in its backward",
    "recompute": "recomputing activations",
    "sync": "in synchronising calls",
    "host_bound": "with a late host",
    "script": "in the script's own lines",
    "other": "outside the training code that was recorded",
}

OTHERS_NS = "at_other_collectives_ns"
"""Of the evidence: what of the cost is waited for at collectives of no unit."""


class Where(NamedTuple):
    """A collective's place in the step."""

    what: str  # "all_gather of layers.0", "barrier at train.py:43"
    phase: int
    micro_batch: int
    nth: int  # of those before


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Waits:
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

    def persistent(self) -> list[dict[Where, npt.NDArray[np.float64]]]:
        """For each rank, the places at which it is late beyond chance, with [step] by
        how much later than any other.
        """
        found: list[dict[Where, npt.NDArray[np.float64]]] = [{} for _ in self.ranks]
        needed = _steps_beyond_chance(
            len(self.steps), 1 / len(self.ranks), CHANCE / max(1, len(self.caused_ns))
        )
        for where, caused in self.caused_ns.items():
            second, most = np.partition(caused, (-2, -1), axis=0)[-2:]
            leads = (caused == most) & (second < most)
            for at in np.flatnonzero(leads.sum(axis=1) >= needed).tolist():
                net = caused[at] - np.where(leads[at], second, most)
                typical = median(net)
                scatter = median(np.abs(net - typical))
                if typical > BEYOND_NOISE * scatter:
                    found[at][where] = net
        return found


@detector(
    "FD401",
    "straggler-rank",
    needs={Evidence.STEPS, Evidence.COLLECTIVES},
    needs_any=STALLS_KNOWN,
)
def straggler_rank(m: Measures) -> Iterator[Finding]:
    """The same rank arrives last at collectives, and the others wait for it.

    *Why it costs*: a collective ends when its last rank has come. The time the
    others lose there is no network time, and no faster link helps. It counts at the
    script's own collectives, too: a barrier, or a flag that is reduced in each step,
    takes in what would else be waited for at the next all-gather.

    *What to try*: whatever that rank does more of: more tokens (balance or pack by
    length), garbage collection (one schedule for all ranks), a slow data loader, a
    busy or throttled host.

    *When it is wrong*: only a rank that is last in most steps, beyond what varies
    between steps, is named. Ranks that take turns are reported as information:
    their work varies, or the machine is busy. Clocks of different hosts are
    aligned on the ends of collectives; differences below what that leaves are not
    judged.
    """
    if len(m.ranks) < 2 or not m.alignment.matched:
        raise CannotTell("no two ranks' collectives could be matched", Evidence.RANKS)
    step_ns = steady(m)
    waits = _waits(m)
    if len(waits.steps) < MIN_JUDGED_STEPS:
        raise CannotTell(
            f"{len(waits.steps)} steps were judged on every rank, "
            f"{MIN_JUDGED_STEPS} are needed",
            Evidence.STEPS,
        )
    if not waits.told and not waits.others and m.alignment.unsplit:
        raise CannotTell(
            "the clocks' residual is larger than the arrivals' spread", Evidence.RANKS
        )
    late = waits.persistent()
    typical = [sum(median(net) for net in one.values()) for one in late]
    at = int(np.argmax(typical))
    # Chance gives every rank a few such places; only what is beyond it counts.
    beyond = typical[at] - max(np.delete(typical, at))
    if beyond / step_ns >= WARNING_SHARE:
        yield _one_rank(m, waits, at, late[at])
        return
    total_ns = round(float(waits.of_units_ns.sum(axis=0).mean()))
    if total_ns / step_ns >= CRITICAL_SHARE:
        yield _in_turns(waits, total_ns, step_ns)


@cache
def _steps_beyond_chance(steps: int, probability: float, chance: float) -> int:
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


def _waits(m: Measures) -> _Waits:
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
    return _Waits(
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
        last, nth = m.alignment.last_rank[rank.rank], _nth_in_step(rank)
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


def _nth_in_step(rank: RankMeasures) -> Int64s:
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


def _one_rank(
    m: Measures, waits: _Waits, at: int, late: dict[Where, npt.NDArray[np.float64]]
) -> Finding:
    rank = waits.ranks[at]
    step_ns = float(m.step_ns.mean())
    caused = np.array([waits.caused_ns[where][at] for where in late])  # [place, step]
    beside = [waits.caused_ns[where][at] for where in late if where in waits.others]
    cost_ns = round(float(caused.sum(axis=0).mean()))
    leads = float((np.array(list(late.values())).sum(axis=0) > 0).mean())
    why, differences = _why(m, rank)
    worst = int(np.argmax(caused.sum(axis=0)))
    totals = waits.total_ns
    first = max(late, key=lambda where: median(late[where]))
    return Finding(
        severity=level(cost_ns / step_ns, WARNING_SHARE, CRITICAL_SHARE),
        confidence=Confidence.HIGH if leads == 1.0 else Confidence.MEDIUM,
        summary=f"rank {rank} arrives last in {percent(leads)} of the steps; the ranks "
        f"wait {ms(cost_ns)} per step ({of_step(cost_ns / step_ns)}) for it{why}",
        ranks=(rank,),
        cost_ns_per_step=cost_ns,
        evidence={
            "share_of_steps": round(leads, 4),
            "last_arrivals": int(waits.late[at]),
            "arrivals_told": waits.told,
            "caused_ns_per_step": {
                str(r): round(float(totals[i].mean()))
                for i, r in enumerate(waits.ranks)
            },
            "places": len(late),
            "late_most_at": _words(first),
            "more_than_others_ns": dict(differences),
            OTHERS_NS: round(float(sum(one.mean() for one in beside))),
        },
        advice=_advice(differences, why),
        places=_places(m, rank, waits.steps[worst]),
    )


def _words(where: Where) -> str:
    """A place in the step: `all_gather of layers.0 (forward)`."""
    return f"{where.what} ({Phase(where.phase).key})"


def _places(m: Measures, rank: int, step: int) -> tuple[Location, ...]:
    """The worst step of the late rank."""
    mine = m.of(rank)
    row = int(np.flatnonzero(mine.steps.step == step)[0])
    start, end = int(mine.steps.start_ns[row]), int(mine.steps.end_ns[row])
    return (Location(rank=rank, step=step, start_ns=start, end_ns=end),)


def _why(m: Measures, rank: int) -> tuple[str, dict[str, int]]:
    """What the late rank had more of than the others' mean, largest first."""
    mine = m.of(rank)
    others = [r for r in m.ranks if r.rank != rank]
    differences = {
        part: round(
            float(mine.budget_ns[part][mine.judged].mean())
            - float(np.mean([r.budget_ns[part][r.judged].mean() for r in others]))
        )
        for part in OWN_PARTS
    }
    ordered = dict(
        sorted(((p, d) for p, d in differences.items() if d > 0), key=lambda x: -x[1])
    )
    tokens = [r.steps.tokens[r.judged] for r in (mine, *others)]
    if all((t != UNKNOWN).all() and len(t) for t in tokens):
        ratio = float(tokens[0].mean()) / float(np.mean([t.mean() for t in tokens[1:]]))
        if ratio >= MORE_TOKENS:
            return f"; it processes {ratio:.2f} times the others' tokens", ordered
    if not ordered:
        return "", ordered
    part = next(iter(ordered))
    doing = WORDS.get(part, f"in {part}")
    line = _line(m, rank) if part == "script" else None
    at = f" ({line} most of all)" if line else ""
    return f"; it spends {ms(ordered[part])} more per step {doing}{at}", ordered


def _line(m: Measures, rank: int) -> str | None:
    """The line of the script on which a rank spends most more than the others' mean."""
    mine = {
        one.rank: {line.where: per_step(of, ns) for line, ns in gap_lines(of).items()}
        for one in m.ranks
        for of in (replace(m, ranks=(one,)),)
    }
    own = mine.pop(rank)
    more = {
        line: ns - sum(other.get(line, 0) for other in mine.values()) / len(mine)
        for line, ns in own.items()
    }
    return max(more, key=lambda line: more[line], default=None)


REMEDIES = {
    "gc": "Collect garbage on all ranks in the same step: FD403.",
    "input": "See this rank's data loader: FD402.",
    "checkpoint": "See this rank's checkpoints: FD405.",
    "optimizer": "See this rank's optimizer: FD404.",
    "script": "Do what this rank runs between its passes in every N-th step, in a "
    "thread, or on all ranks at once; FD902 has the lines.",
}
"""What to do about what a late rank does more of."""

OTHERWISE = (
    "Compare this rank's host and device with the others': load, pinning, clocks, "
    "temperature; and its share of the work."
)


def _advice(differences: dict[str, int], why: str) -> tuple[Advice, ...]:
    if "tokens" in why:
        return (
            Advice(text="Give every rank as many tokens: pack or group by length."),
        )
    part = next(iter(differences), "")
    return (Advice(text=REMEDIES.get(part, OTHERWISE)),)


def _in_turns(waits: _Waits, total_ns: int, step_ns: float) -> Finding:
    """No rank is late for good, and still much time is lost to late ones."""
    return Finding(
        severity=Severity.INFO,
        confidence=Confidence.LOW,
        summary=f"ranks take turns at being late: {ms(total_ns)} per step "
        f"({of_step(total_ns / step_ns)}) of waiting for them",
        ranks=waits.ranks,
        cost_ns_per_step=total_ns,
        evidence={
            "caused_ns_per_step": {
                str(r): round(float(waits.of_units_ns[i].mean()))
                for i, r in enumerate(waits.ranks)
            }
        },
        advice=(
            Advice(
                text="Work that varies between ranks, or a machine with more busy "
                "processes than cores."
            ),
        ),
    )
