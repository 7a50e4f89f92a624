"""What detectors read off the measures: judged stalls of all ranks in one table.

All figures per step are means over the judged steps of all ranks, as in
`Measures.exposed_ns_per_step`, so that parts add up to the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import (
    MIN_JUDGED_STEPS,
    CounterRows,
    RankMeasures,
)
from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.analysis.timeline import Collectives, first_of_step
from fsdpdoctor.detectors.base import CannotTell
from fsdpdoctor.finding import Location, Value
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import (
    ROOT,
    UNKNOWN,
    Evidence,
    Flag,
    Kind,
    Phase,
    Table,
    UnitSpec,
    column,
)

PHASES: dict[int, str] = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward"}
"""Phases under their JSON names."""

EMBEDDING = re.compile(r"(^|[._])(embed\w*|wte|wpe|emb|lm_head|head|output)([._]|$)")
"""Parameter names of vocabulary tables in the common model families."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExposedRows(Table):
    """One row per judged stall of any rank."""

    rank: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # index in Exposed.units
    kind: npt.NDArray[np.int8] = column("int8", 0)
    phase: npt.NDArray[np.int8] = column("int8", 0)
    flags: npt.NDArray[np.int16] = column("int16", 0)
    edge: npt.NDArray[np.int8] = column("int8", 0)  # 1: a step's first all-gather, a
    # micro-batch's last reduction: nothing to hide under
    start_ns: npt.NDArray[np.int64] = column("int64", 0)
    end_ns: npt.NDArray[np.int64] = column("int64", 0)
    issued_ns: npt.NDArray[np.int64] = column("int64", 0)
    host_late: npt.NDArray[np.int64] = column("int64", 0)
    queued: npt.NDArray[np.int64] = column("int64", 0)
    straggler: npt.NDArray[np.int64] = column("int64", 0)
    wire: npt.NDArray[np.int64] = column("int64", 0)
    tail: npt.NDArray[np.int64] = column("int64", 0)

    @property
    def duration_ns(self) -> Int64s:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exposed:
    """Judged stalls of all ranks, with the units' names."""

    rows: ExposedRows
    units: tuple[str, ...]
    steps: int  # judged steps, over all ranks

    def where(self, mask: npt.NDArray[np.bool_]) -> Exposed:
        """Some of the stalls."""
        return Exposed(rows=self.rows.rows(mask), units=self.units, steps=self.steps)

    def of(self, *kinds: Kind, phase: int | None = None) -> Exposed:
        """The stalls of some kinds of collective, in one phase or all."""
        mask = np.isin(self.rows.kind, kinds)
        return self.where(mask if phase is None else mask & (self.rows.phase == phase))

    def named(self, *units: str) -> Exposed:
        """The stalls of some units."""
        ids = [at for at, name in enumerate(self.units) if name in units]
        return self.where(np.isin(self.rows.unit, ids))

    @property
    def body(self) -> Exposed:
        """Those with something to hide under."""
        return self.where(self.rows.edge == 0)

    @property
    def edge(self) -> Exposed:
        """Those with nothing to hide under."""
        return self.where(self.rows.edge == 1)

    @property
    def ns_per_step(self) -> int:
        return self.mean(self.rows.duration_ns)

    def mean(self, amount: Int64s) -> int:
        """A column's sum per judged step and rank."""
        return round(int(amount.sum()) / self.steps) if self.steps else 0

    def by_cause(self) -> dict[str, Value]:
        """Nanoseconds per step by cause."""
        return {cause: self.mean(getattr(self.rows, cause)) for cause in CAUSES}

    def by_unit(self) -> dict[str, int]:
        """Nanoseconds per step by unit, the most expensive first."""
        sums = np.zeros(len(self.units), dtype=np.int64)
        known = self.rows.unit >= 0
        np.add.at(sums, self.rows.unit[known], self.rows.duration_ns[known])
        order = np.argsort(-sums, kind="stable")
        return {
            self.units[at]: round(int(sums[at]) / self.steps)
            for at in order
            if sums[at] > 0
        }

    def ranks(self) -> tuple[int, ...]:
        return tuple(int(r) for r in np.unique(self.rows.rank))

    def places(self, limit: int = 3) -> tuple[Location, ...]:
        """The longest stalls."""
        order = np.argsort(-self.rows.duration_ns, kind="stable")[:limit]
        return tuple(
            Location(
                rank=int(self.rows.rank[at]),
                step=int(self.rows.step[at]),
                start_ns=int(self.rows.start_ns[at]),
                end_ns=int(self.rows.end_ns[at]),
                unit=self.units[self.rows.unit[at]]
                if self.rows.unit[at] >= 0
                else None,
            )
            for at in order
        )


@lru_cache(maxsize=1)  # a dozen detectors ask the same of one run
def exposed(m: Measures) -> Exposed:
    """Every judged stall of a run. Units of one name on several ranks are one."""
    names: dict[str, int] = {}
    parts: list[ExposedRows] = []
    for rank in m.ranks:
        ids = [names.setdefault(spec.fqn, len(names)) for spec in rank.units]
        stalls, causes = rank.stalls, m.causes[rank.rank]
        keep = rank.in_judged(stalls.step)
        unit = np.array([*ids, UNKNOWN])[np.where(stalls.unit < 0, -1, stalls.unit)]
        table = ExposedRows.build(
            len(stalls),
            rank=rank.rank,
            unit=unit,
            edge=edges(rank.collectives)[stalls.collective],
            issued_ns=rank.collectives.issued_ns[stalls.collective],
            **{n: getattr(stalls, n) for n in ("step", "kind", "phase", "flags")},
            **{n: getattr(stalls, n) for n in ("start_ns", "end_ns")},
            **{cause: causes[cause] for cause in CAUSES},
        )
        parts.append(table.rows(keep))
    return Exposed(
        rows=ExposedRows.concat(parts), units=tuple(names), steps=len(m.step_ns)
    )


class Placed(Protocol):
    """A table of something that a rank did: stalls, windows, collectives."""

    @property
    def step(self) -> Int64s: ...

    @property
    def start_ns(self) -> Int64s: ...

    @property
    def end_ns(self) -> Int64s: ...

    @property
    def unit(self) -> npt.NDArray[np.int32]: ...


def place_of(rank: RankMeasures, rows: Placed, at: SupportsIndex) -> Location:
    """Where to look for one row of a rank's table."""
    return Location(
        rank=rank.rank,
        step=int(rows.step[at]),
        start_ns=int(rows.start_ns[at]),
        end_ns=int(rows.end_ns[at]),
        unit=rank.unit_name(int(rows.unit[at])),
    )


NO_ROWS: Int64s = np.empty(0, dtype=np.int64)


def rows_by_step(step: Int64s) -> dict[int, Int64s]:
    """Row numbers of each step, ascending: one look at a table, not one per step."""
    if len(step) == 0:
        return {}
    order = np.argsort(step, kind="stable")
    values, firsts = np.unique(step[order], return_index=True)
    return dict(zip(values.tolist(), np.split(order, firsts[1:]), strict=True))


def edges(collectives: Collectives) -> npt.NDArray[np.bool_]:
    """[C]: collectives with nothing to hide under: the first all-gather of a step,
    and the last reduce-scatter and all-reduce of each micro-batch's backward.
    """
    found = np.zeros(len(collectives), dtype=bool)
    for rows in rows_by_step(collectives.step).values():
        found[rows[first_of_step(collectives.rows(rows))]] = True
    for kind in (Kind.REDUCE_SCATTER, Kind.ALL_REDUCE):
        rows = np.flatnonzero(collectives.kind == kind)
        step, micro = collectives.step[rows], collectives.micro_batch[rows]
        order = rows[np.lexsort((collectives.start_ns[rows], micro, step))]
        step, micro = collectives.step[order], collectives.micro_batch[order]
        if len(order):
            last = (np.diff(step) != 0) | (np.diff(micro) != 0)
            found[order[np.concatenate((last, [True]))]] = True
    return found


def steady(m: Measures) -> float:
    """The mean judged step, in nanoseconds, against which times are held.

    A live record's first steps are no steady state, so it needs three judged
    steps; a capture of kernels was taken where its user chose, and one is enough.
    """
    least = 1 if Evidence.KERNELS in m.evidence else MIN_JUDGED_STEPS
    fewest = min((int(rank.judged.sum()) for rank in m.ranks), default=0)
    if fewest < least:
        raise CannotTell(
            f"{fewest} judged steps on a rank, at least {least} are needed",
            Evidence.STEPS,
        )
    return float(m.step_ns.mean())


def few_steps(m: Measures) -> bool:
    """Whether medians and means rest on fewer steps than deserve confidence."""
    return min(int(rank.judged.sum()) for rank in m.ranks) < MIN_JUDGED_STEPS


def per_step(m: Measures, total: int) -> int:
    """A sum over the judged steps of all ranks, per judged step and rank."""
    return round(total / len(m.step_ns)) if len(m.step_ns) else 0


def unit_sums(m: Measures, name: str, phase: int | None = None) -> dict[str, int]:
    """A column of UnitTimes summed over judged steps and ranks, by unit name."""
    sums: dict[str, int] = {}
    for rank in m.ranks:
        times = rank.unit_times
        keep = rank.in_judged(times.step)
        if phase is not None:
            keep &= times.phase == phase
        totals = np.zeros(len(rank.units), dtype=np.int64)
        np.add.at(totals, times.unit[keep], getattr(times, name)[keep])
        for unit in np.unique(times.unit[keep]).tolist():
            fqn = rank.units[unit].fqn
            sums[fqn] = sums.get(fqn, 0) + int(totals[unit])
    return sums


def all_units(m: Measures) -> dict[str, UnitSpec]:
    """Every unit of any rank by name: pipeline stages have their own."""
    return {spec.fqn: spec for rank in reversed(m.ranks) for spec in rank.units}


def recompute_seen(m: Measures) -> bool:
    """Whether a forward ran again in backward: then a forward prefetch issued
    there would gather units whose backward is done.
    """
    return any(
        bool(rank.unit_times.recomputes.any())
        or bool((rank.collectives.flags & Flag.RECOMPUTE).any())
        or any(spec.checkpointed for spec in rank.units)
        or (rank.header.model is not None and rank.header.model.checkpoint is not None)
        for rank in m.ranks
    )


def forward_order(m: Measures) -> list[str]:
    """Units in the order in which the first rank ran them; empty: not known."""
    for rank in m.ranks:
        model = rank.header.model
        order = rank.first_forward or (model.forward_order if model else ())
        if order:
            return [rank.units[at].fqn for at in order if 0 <= at < len(rank.units)]
    return []


def first_path(fqn: str) -> str:
    """A module path of a unit: the first of a grouped one, no `[pg=N]`."""
    if fqn == ROOT:
        return ""
    return fqn.split(" [")[0].split(", ")[0]


def backward_order(m: Measures) -> list[str]:
    """Units as their backwards begin: the reverse of forward, a parent before its
    children, for its output's gradient comes first.
    """
    order = forward_order(m)
    result: list[str] = []
    for fqn in reversed(order):
        around = [other for other in order if inside(fqn, other)]
        result += [unit for unit in (*around, fqn) if unit not in result]
    return result


def inside(fqn: str, other: str) -> bool:
    """Whether a unit's module lies within another unit's."""
    if fqn == other:
        return False
    return other == ROOT or f"{first_path(fqn)}.".startswith(f"{first_path(other)}.")


def judged_collectives(m: Measures) -> Iterator[tuple[RankMeasures, Collectives]]:
    """Each rank with its collectives of judged steps."""
    for rank in m.ranks:
        yield rank, rank.collectives.rows(rank.in_judged(rank.collectives.step))


def counter_rows(rank: RankMeasures, counter: str) -> CounterRows:
    """A counter's values in judged steps."""
    named = [rank.name(int(name)) == counter for name in rank.counters.name]
    keep = np.array(named, dtype=bool) & rank.in_judged(rank.counters.step)
    return rank.counters.rows(keep)


def on_cpu(m: Measures) -> bool:
    """Whether the host computes itself: no streams, and gloo."""
    return m.run.device == "cpu"
