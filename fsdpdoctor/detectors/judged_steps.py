"""The judged steps of all ranks: their tables, sums and means.

All figures per step are means over the judged steps of all ranks, as in
`Measures.exposed_ns_per_step`, so that parts add up to the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import (
    MIN_JUDGED_STEPS,
    RankMeasures,
)
from fsdpdoctor.analysis.rank_tables import CounterRows
from fsdpdoctor.analysis.timeline import Collectives
from fsdpdoctor.detectors.base import CannotTell
from fsdpdoctor.finding import Location
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import (
    UNKNOWN,
    BlockSpec,
    Evidence,
    Flag,
    Kind,
    Phase,
    UnitSpec,
    distinct,
)

PHASES: dict[int, str] = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward"}
"""Phases under their JSON names."""


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


def steady(m: Measures) -> float:
    """The mean judged step, in nanoseconds, against which times are held.

    A live record's first steps are no steady state, so it needs three judged
    steps; a capture of kernels was taken where its user chose, and one is enough.
    A rank whose record breaks off before does not take the others' from them.
    """
    least = 1 if Evidence.KERNELS in m.evidence else MIN_JUDGED_STEPS
    most = _most_judged(m)
    if most < least:
        raise CannotTell(
            f"{most} judged steps on a rank, at least {least} are needed",
            Evidence.STEPS,
        )
    return float(m.step_ns.mean())


def few_steps(m: Measures) -> bool:
    """Whether medians and means rest on fewer steps than deserve confidence."""
    return _most_judged(m) < MIN_JUDGED_STEPS


def _most_judged(m: Measures) -> int:
    """The judged steps of the rank that has most."""
    return max((int(rank.judged.sum()) for rank in m.ranks), default=0)


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
        for unit in distinct(times.unit[keep]).tolist():
            fqn = rank.units[unit].fqn
            sums[fqn] = sums.get(fqn, 0) + int(totals[unit])
    return sums


def all_units(m: Measures) -> dict[str, UnitSpec]:
    """Every unit of any rank by name: pipeline stages have their own."""
    return {spec.fqn: spec for rank in reversed(m.ranks) for spec in rank.units}


def units_around(
    units: Mapping[str, UnitSpec], block: BlockSpec
) -> dict[str, UnitSpec]:
    """Of all units by name, those of the model that blocks are part of."""
    return {
        fqn: spec for fqn, spec in units.items() if block.model in (UNKNOWN, spec.model)
    }


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


def judged_collectives(m: Measures) -> Iterator[tuple[RankMeasures, Collectives]]:
    """Each rank with its collectives of judged steps."""
    for rank in m.ranks:
        yield rank, rank.collectives.rows(rank.in_judged(rank.collectives.step))


def gathered_by_unit(m: Measures, phase: Phase | None = None) -> Counter[str | None]:
    """What all-gathers of judged steps brought, of a phase or all, by unit; None: of
    those whose unit is not known, which count from the end.
    """
    found: Counter[str | None] = Counter()
    for rank, rows in judged_collectives(m):
        mine = rows.kind == Kind.ALL_GATHER
        if phase is not None:
            mine &= rows.phase == phase
        sums = np.zeros(len(rank.units) + 1, dtype=np.int64)
        np.add.at(sums, rows.unit[mine], rows.bytes[mine].clip(0))
        for name, total in zip((*(u.fqn for u in rank.units), None), sums, strict=True):
            found[name] += int(total)
    return found


def gathered_bytes(
    m: Measures, names: Collection[str] | None = None, phase: Phase | None = None
) -> int:
    """What all-gathers of judged steps brought: all of them, some units', a phase's."""
    found = gathered_by_unit(m, phase)
    return found.total() if names is None else sum(found[name] for name in {*names})


def counter_rows(rank: RankMeasures, counter: str) -> CounterRows:
    """The rows of one counter in a rank's judged steps."""
    rows = all_counter_rows(rank, counter)
    return rows.rows(rank.in_judged(rows.step))


def all_counter_rows(rank: RankMeasures, counter: str) -> CounterRows:
    """The same, of every recorded step."""
    named = [rank.name(int(name)) == counter for name in rank.counters.name]
    return rank.counters.rows(np.array(named, dtype=bool))


def on_cpu(m: Measures) -> bool:
    """Whether the host computes itself: no streams, and gloo."""
    return m.run.device == "cpu"
