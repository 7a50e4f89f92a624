"""FD406: ranks did not issue the same collectives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from fsdpdoctor.analysis.clock_alignment import group_key
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.rank_shelf import given_back
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.endings import (
    differs_by_what_ranks_did,
    ending,
    verdict_of,
)
from fsdpdoctor.detectors.judged_steps import NO_ROWS, place_of, rows_by_step
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count, size
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind, Phase, median, one_of

Issued = tuple[int, int, str | None]
"""A collective as every rank of its group must issue it: kind, bytes, and the unit
where every rank has one of that name and a hook said it.
"""

GroupName = tuple[str, tuple[int, ...]]


@detector("FD406", "spmd-divergence", needs={Evidence.STEPS})
def spmd_divergence(m: Measures) -> Iterator[Finding]:
    """Ranks issued different collectives, or left a loop at different times.

    *Why it costs*: all ranks of a group must issue the same collectives in the same
    order. Where they do not, they hang, or mix one unit's bytes with another's, from
    there to the end and perhaps without an error.

    *What to try*: run every branch on every rank, with a dummy input where there is
    no data; keep modules that only some ranks use in the root unit; count
    micro-batches over all ranks; take `if rank == 0` off what communicates.
    `TORCH_DISTRIBUTED_DEBUG=DETAIL` names the mismatch when it happens.

    *When it is wrong*: of steps that were not recorded only the last events, torch's
    own counts and the stacks are compared. Ranks that cut their steps at other places
    are no finding where their numbers in the group show it, and a warning where nothing
    tells. Only the first difference is said: what
    comes after follows from it.
    """
    difference = recorded_difference(m)
    if difference is not None and difference.proved:
        yield _differs(m, difference)
        return
    found = verdict_of(m)
    if found is not None and differs_by_what_ranks_did(found[0]):
        yield ending(m, *found)
    elif found is None and difference is not None:
        yield _differs(m, difference)
    elif found is None and m.missing_ranks and any(rank.beats for rank in m.ranks):
        yield _missing(m)
    elif found is None and len(m.ranks) < 2 and m.run.world_size > 1:
        raise CannotTell("only one rank left a record", Evidence.RANKS)


def _phase(phase: int) -> str | None:
    return {Phase.FORWARD: "forward", Phase.BACKWARD: "backward"}.get(Phase(phase))


def _missing(m: Measures) -> Finding:
    """Ranks of a recorded job without a record."""
    ranks = ", ".join(str(rank) for rank in m.missing_ranks[:8])
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LOW,
        summary=f"{count(len(m.missing_ranks), 'rank')} of {m.run.world_size} left no "
        f"record: {ranks}{', ...' if len(m.missing_ranks) > 8 else ''}",
        ranks=m.missing_ranks,
        evidence={"missing": list(m.missing_ranks)},
        advice=(
            Advice(
                text="Give analyze the folders of all hosts; if these are all, the "
                "ranks ended before they were set up."
            ),
        ),
    )


class _Difference(NamedTuple):
    """A step and a place in it, and what the sides have there."""

    group: str
    step: int
    place: int
    sides: tuple[_At, ...]  # the most ranks first
    proved: bool  # by the numbers that collectives have in their group


class _At(NamedTuple):
    """Ranks that agree, by the first of them and its row (UNKNOWN: it has none)."""

    rank: RankMeasures
    row: int
    ranks: tuple[int, ...]


def recorded_difference(m: Measures) -> _Difference | None:
    """The first collective, by step, in which ranks of a group differ."""
    found = [one for group in _groups(m) for one in _first_difference(*group)]
    return min(found, key=lambda one: (one.step, one.place), default=None)


def _groups(m: Measures) -> Iterator[tuple[str, list[_Side]]]:
    """Each group's name, and its ranks."""
    members: dict[GroupName, dict[int, set[int]]] = {}
    by_rank = {rank.rank: rank for rank in m.ranks}
    for rank in m.ranks:
        for at, group in enumerate(rank.header.groups):
            if rank.rank in group.ranks:  # else who belongs together is not known
                ids = members.setdefault(group_key(group), {})
                ids.setdefault(rank.rank, set()).add(at)
    for (name, _), by_number in members.items():
        ranks = [by_rank[r] for r in sorted(by_number)]
        passing = given_back(ranks, lambda rank: (rank.collectives,))
        sides = [_Side(rank, by_number[rank.rank]) for rank in passing]
        if len(sides) < 2:
            continue
        shared = frozenset.intersection(*(side.names for side in sides))
        for side in sides:
            side.shared = shared
        yield name, sides


class _Side:
    """One rank of a group, whose indices in the rank's header are given."""

    def __init__(self, rank: RankMeasures, groups: set[int]) -> None:
        self.rank = rank
        table = rank.collectives
        rows = np.flatnonzero(
            one_of(table.group, list(groups)) & (table.seq != UNKNOWN)
        )
        self._rows = rows[np.argsort(table.seq[rows], kind="stable")]
        self._of_step = rows_by_step(table.step[self._rows])
        self.shared: frozenset[str] = frozenset()  # names of units on every side

    @property
    def names(self) -> frozenset[str]:
        """Of its units, where hooks said them; ranks may name theirs apart."""
        if Evidence.KERNELS in self.rank.evidence:
            return frozenset()
        return frozenset(spec.fqn for spec in self.rank.units)

    def whole_steps(self) -> set[int]:
        steps = self.rank.steps
        return set(steps.step[steps.complete == 1].tolist())

    def issued(self, step: int) -> list[int]:
        """Rows of the group's collectives of one step, in their order in it."""
        rows: list[int] = self._rows[self._of_step.get(step, NO_ROWS)].tolist()
        return rows

    def first_number(self, step: int) -> int:
        """In the group, of the first collective of a step."""
        rows = self.issued(step)
        return int(self.rank.collectives.seq[rows[0]]) if rows else UNKNOWN

    def contradicts(self, other: _Side) -> bool:
        """Whether a number in the group was something else there."""
        mine, theirs = self.rank.collectives, other.rank.collectives
        _, here, there = np.intersect1d(
            mine.seq[self._rows], theirs.seq[other._rows], return_indices=True
        )
        here, there = self._rows[here], other._rows[there]
        differ = (mine.kind[here] != theirs.kind[there]) | (
            mine.bytes[here] != theirs.bytes[there]
        )
        names = ((mine.unit[here], self.rank), (theirs.unit[there], other.rank))
        units = [[r.unit_name(at) for at in column.tolist()] for column, r in names]
        return bool(differ.any()) or any(
            one is not None and two is not None and one != two
            for one, two in zip(*units, strict=True)
        )

    def what(self, row: int) -> Issued:
        table = self.rank.collectives
        name = self.rank.unit_name(int(table.unit[row]))
        known = name if name in self.shared else None
        return int(table.kind[row]), int(table.bytes[row]), known


def _first_difference(name: str, sides: list[_Side]) -> Iterator[_Difference]:
    """The first step in which ranks issued others, if any.

    Ranks that only cut their steps at other places have the same under the same
    numbers, and begin a later step with one number again: that is no difference.
    """
    one = sides[0]
    others = given_back(sides[1:], lambda side: (side.rank.collectives,))
    steps = sorted(set.intersection(*(s.whole_steps() for s in sides)))
    for at, step in enumerate(steps):
        mine = [one.what(row) for row in one.issued(step)]
        if all([o.what(row) for row in o.issued(step)] == mine for o in others):
            continue
        found = _difference(name, step, sides)
        proved = _uneven(found) or any(one.contradicts(other) for other in others)
        if not proved and _even_again(sides, steps[at + 1 :]):
            continue
        yield found._replace(proved=proved)
        return


def _even_again(sides: list[_Side], later: list[int]) -> bool:
    numbers = ({side.first_number(step) for side in sides} for step in later)
    return any(len(one) == 1 and one != {UNKNOWN} for one in numbers)


def _difference(name: str, step: int, sides: list[_Side]) -> _Difference:
    """Where in a step it is, and who has what."""
    rows = [side.issued(step) for side in sides]
    for place, at in enumerate(zip_longest(*rows, fillvalue=UNKNOWN)):
        versions: dict[Issued | None, list[tuple[_Side, int]]] = {}
        for side, row in zip(sides, at, strict=True):
            what = None if row == UNKNOWN else side.what(row)
            versions.setdefault(what, []).append((side, row))
        if len(versions) > 1:
            ordered = sorted(versions.values(), key=len, reverse=True)
            return _Difference(name, step, place, tuple(map(_at, ordered)), False)
    raise AssertionError("no difference in a step that differs")


def _at(members: list[tuple[_Side, int]]) -> _At:
    side, row = members[0]
    return _At(side.rank, row, tuple(s.rank.rank for s, _ in members))


def _differs(m: Measures, difference: _Difference) -> Finding:
    from fsdpdoctor.hang.verdict_words import EVERY_RANK

    sides = difference.sides
    draw = len(sides[0].ranks) == len(sides[1].ranks)
    unstepped = _unstepped(m, difference)
    blamed = sorted(
        unstepped.ranks
        if unstepped is not None
        else (r for side in sides[0 if draw else 1 :] for r in side.ranks)
    )
    known = [side for side in sides if side.row != UNKNOWN]
    units = [name for side in known if (name := _unit(side)) is not None]
    table = known[0].rank.collectives
    severity, confidence = _weight(m, difference)
    return Finding(
        severity=severity,
        confidence=confidence,
        summary=_summary(difference, unstepped)
        + (NOT_PROVED * (not difference.proved)),
        units=tuple(dict.fromkeys(units)),
        phase=_phase(int(table.phase[known[0].row])),
        ranks=tuple(blamed),
        evidence={
            "group": difference.group,
            "step": difference.step,
            "position": difference.place,
            **{str(r): _words(side) for side in sides for r in side.ranks[:1]},
            "micro_batches": {
                str(side.ranks[0]): _micro_batches(side.rank, difference.step)
                for side in sides
            },
        },
        advice=(
            Advice(text=STEPPED, code=_stepped_code(m), memory_cost_bytes=0)
            if unstepped is not None
            else Advice(text=EVERY_RANK + MICRO_BATCHES * _uneven(difference)),
        ),
        places=(place_of(known[0].rank, table, known[0].row),),
    )


def _weight(m: Measures, difference: _Difference) -> tuple[Severity, Confidence]:
    # Captures drop events and begin at different moments; a record does neither.
    if Evidence.KERNELS in m.evidence:
        return Severity.WARNING, Confidence.LOW
    if not difference.proved:
        return Severity.WARNING, Confidence.MEDIUM
    return Severity.CRITICAL, Confidence.HIGH


NOT_PROVED = (
    "; no number of the group is something else on another rank, as far as was "
    "recorded, so perhaps these ranks only cut their steps at other places: a record "
    "of the steps after it would tell"
)

STEPPED = (
    "Step the optimizer on every rank or on none: what decides it (a loss that spikes, "
    "a norm that is not finite) must be the same on all ranks, so reduce it first."
)
STEPPED_CODE = """import torch
import torch.distributed as dist

# `skip` is this rank's own decision; on every rank, before the optimizer steps:
skip = torch.tensor(float(skip), device=device)
dist.all_reduce(skip, op=dist.ReduceOp.MAX)
if not skip.item():
    optimizer.step()
optimizer.zero_grad()"""

MICRO_BATCHES = (
    " Where a micro-batch is dropped, every rank must drop it together: agree on it "
    "with an all-reduce, or run it with a loss of zero."
)


def _micro_batches(rank: RankMeasures, step: int) -> int:
    return int(rank.steps.micro_batches[rank.steps.step == step][0])


def _uneven(difference: _Difference) -> bool:
    counts = {_micro_batches(s.rank, difference.step) for s in difference.sides}
    return len(counts) > 1 and UNKNOWN not in counts


def _unstepped(m: Measures, difference: _Difference) -> _At | None:
    """The side whose optimizer left steps out: it ran the micro-batches of several
    steps in one, where the others ran those of one as everybody does, and all issued
    as many collectives in the end. One that ran more micro-batches issued more.
    """
    ends = {_last_number(side, difference.group) for side in difference.sides}
    if not _uneven(difference) or len(ends) > 1:
        return None
    every = np.concatenate(
        [r.steps.micro_batches[r.steps.complete == 1] for r in m.ranks]
    )
    usual = int(median(every[every != UNKNOWN]))
    ran = {
        _micro_batches(side.rank, difference.step): side for side in difference.sides
    }
    most = max(ran)
    if ran.keys() != {usual, most} or usual < 1 or most % usual:
        return None
    return ran[most]


def _last_number(side: _At, group: str) -> int:
    """In the group, of the last collective that was recorded."""
    table = side.rank.collectives
    ids = [at for at, g in enumerate(side.rank.header.groups) if g.name == group]
    return int(table.seq[one_of(table.group, ids)].max(initial=UNKNOWN))


def _stepped_code(m: Measures) -> str:
    return STEPPED_CODE.replace("device=device", f'device="{m.run.device}"')


def _summary(difference: _Difference, unstepped: _At | None) -> str:
    sides = difference.sides
    if unstepped is not None:
        ran = _micro_batches(unstepped.rank, difference.step)
        other = next(side for side in sides if side.rank is not unstepped.rank)
        usual = _micro_batches(other.rank, difference.step)
        return (
            f"ranks differ in when their optimizers step: in step {difference.step} "
            f"rank {unstepped.ranks[0]} ran {count(ran, 'micro-batch')} and rank "
            f"{other.ranks[0]} {usual}, so its optimizer left out "
            f"{count(ran // usual - 1, 'step')}: its shards keep old weights where the "
            "others are updated, and from there its steps are counted one off"
        )
    ordered = sorted(sides[:2], key=lambda side: side.ranks)
    numbers = " and ".join(str(side.ranks[0]) for side in ordered)
    says = ", ".join(_words(side) for side in ordered)
    uneven = ""
    if _uneven(difference):
        said = " and ".join(
            f"rank {s.ranks[0]} ran {_micro_batches(s.rank, difference.step)}"
            for s in ordered
        )
        uneven = f"; of its micro-batches {said}, so from there they are paired one off"
    return (
        f"ranks {numbers} differ in step {difference.step}, collective "
        f"{difference.place} of group {difference.group}: {says}{uneven}"
    )


def _unit(side: _At) -> str | None:
    return side.rank.unit_name(int(side.rank.collectives.unit[side.row]))


def _words(side: _At) -> str:
    """A side of the difference."""
    number = side.rank.rank
    if side.row == UNKNOWN:
        return f"rank {number} has no more"
    table = side.rank.collectives
    unit = _unit(side) or "an unknown unit"
    kind = Kind(int(table.kind[side.row])).key
    return f"rank {number} has {kind} of {unit} ({size(int(table.bytes[side.row]))})"
