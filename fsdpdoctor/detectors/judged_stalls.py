"""Exposed: the judged stalls of all ranks in one table."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.analysis.timeline import Collectives, first_of_step
from fsdpdoctor.detectors.judged_steps import rows_by_step
from fsdpdoctor.finding import Location, Value
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import (
    UNKNOWN,
    Kind,
    TimedTable,
    column,
    distinct,
    one_of,
)
from fsdpdoctor.storage.spill import Shelf, let_go

MANY = 1 << 18
"""Stalls, of some 200 ranks, whose parts go to files as the whole has: the rows of
thousands of ranks are gigabytes. See [Note: Memory that can be taken back]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExposedRows(TimedTable):
    """One row per judged stall of any rank, in the order of ranks."""

    rank: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # index in Exposed.units
    kind: npt.NDArray[np.int8] = column("int8", 0)
    phase: npt.NDArray[np.int8] = column("int8", 0)
    flags: npt.NDArray[np.int16] = column("int16", 0)
    edge: npt.NDArray[np.int8] = column("int8", 0)  # 1: a step's first all-gather, a
    # micro-batch's last reduction: nothing to hide under
    issued_ns: npt.NDArray[np.int64] = column("int64", 0)
    host_late: npt.NDArray[np.int64] = column("int64", 0)
    queued: npt.NDArray[np.int64] = column("int64", 0)
    straggler: npt.NDArray[np.int64] = column("int64", 0)
    wire: npt.NDArray[np.int64] = column("int64", 0)
    tail: npt.NDArray[np.int64] = column("int64", 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exposed:
    """Judged stalls of all ranks, with the units' names."""

    rows: ExposedRows
    units: tuple[str, ...]
    steps: int  # judged steps, over all ranks
    told: bool  # late ranks are told from the wire

    def where(self, mask: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Exposed:
        """Some of the stalls, by a mask or their numbers."""
        if len(self.rows) < MANY:
            return replace(self, rows=self.rows.rows(mask))
        shelf = Shelf(ExposedRows.columns())
        for name, values in self.rows.items():
            shelf.put([(name, values[mask])])
            let_go({name: values})  # or all columns' pages would be in memory at once
        return replace(self, rows=_taken_from(shelf))

    def _let_go(self) -> None:
        if len(self.rows) >= MANY:
            let_go(self.rows)

    def of(self, *kinds: Kind, phase: int | None = None) -> Exposed:
        """The stalls of some kinds of collective, in one phase or all."""
        mask = one_of(self.rows.kind, kinds)
        return self.where(mask if phase is None else mask & (self.rows.phase == phase))

    def rows_of(self, rank: int) -> slice:
        """Where a rank's stalls stand: they are in the order of ranks."""
        first, last = np.searchsorted(self.rows.rank, (rank, rank + 1)).tolist()
        return slice(first, last)

    def named(self, *units: str) -> Exposed:
        """The stalls of some units."""
        wanted = frozenset(units)
        ids = [at for at, name in enumerate(self.units) if name in wanted]
        return self.where(one_of(self.rows.unit, ids))

    def apart(self) -> Iterator[tuple[str, Exposed]]:
        """Each unit's stalls, of those that have any, one after the other."""
        order = np.argsort(self.rows.unit, kind="stable")
        unit, first = np.unique(self.rows.unit[order], return_index=True)
        for at, rows in zip(unit.tolist(), np.split(order, first[1:]), strict=False):
            if at != UNKNOWN:
                yield self.units[at], self.where(rows)

    def of_units(self, units: Mapping[Kind, Container[str]]) -> Exposed:
        """The stalls of some units, others for each kind of collective."""
        mask = np.zeros(len(self.rows), dtype=bool)
        for kind, names in units.items():
            ids = [at for at, name in enumerate(self.units) if name in names]
            mask |= (self.rows.kind == kind) & one_of(self.rows.unit, ids)
        return self.where(mask)

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
        total = int(amount.sum())
        self._let_go()
        return round(total / self.steps) if self.steps else 0

    def by_cause(self) -> dict[str, Value]:
        """Nanoseconds per step by cause."""
        found: dict[str, Value] = {
            cause: self.mean(getattr(self.rows, cause)) for cause in CAUSES
        }
        if not self.told:
            untold = {"straggler": None, "wire": None}
            found |= {**untold, "wire_or_straggler": found["wire"]}
        return found

    @property
    def late_rank_ns(self) -> int:
        """Nanoseconds per step that a late rank caused, or may have."""
        late = self.mean(self.rows.straggler)
        return late if self.told else late + self.mean(self.rows.wire)

    def by_unit(self) -> dict[str, int]:
        """Nanoseconds per step by unit, the most expensive first."""
        sums = np.zeros(len(self.units), dtype=np.int64)
        known = self.rows.unit >= 0
        np.add.at(sums, self.rows.unit[known], self.rows.duration_ns[known])
        self._let_go()
        order = np.argsort(-sums, kind="stable")
        return {
            self.units[at]: round(int(sums[at]) / self.steps)
            for at in order
            if sums[at] > 0
        }

    def ranks(self) -> tuple[int, ...]:
        found = tuple(int(r) for r in distinct(self.rows.rank))
        self._let_go()
        return found

    def places(self, limit: int = 3) -> tuple[Location, ...]:
        """The longest stalls."""
        order = np.argsort(-self.rows.duration_ns, kind="stable")[:limit]
        self._let_go()
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


# `docs/detectors.md` D01: as much of the step as is named first where nothing costs
# more. What is named needs a finding.
NAMED_SHARE = 0.05


def named_together(m: Measures, part: Exposed) -> bool:
    """Whether all exposed time is worth a name, and one part of it is most of it."""
    every_ns = exposed(m).ns_per_step
    step_ns = float(m.step_ns.mean())
    return every_ns >= NAMED_SHARE * step_ns and 2 * part.ns_per_step >= every_ns


@lru_cache(maxsize=1)  # a dozen detectors ask the same of one run
def exposed(m: Measures) -> Exposed:
    """Every judged stall of a run. Units of one name on several ranks are one."""
    names: dict[str, int] = {}
    shelf = Shelf(ExposedRows.columns())
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
        shelf.put(table.rows(keep).items())
    return Exposed(
        rows=_taken_from(shelf),
        units=tuple(names),
        steps=len(m.step_ns),
        told=m.late_ranks_told,
    )


def _taken_from(shelf: Shelf) -> ExposedRows:
    return ExposedRows(**shelf.take())  # type: ignore[arg-type]


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
