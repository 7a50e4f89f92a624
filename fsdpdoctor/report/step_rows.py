"""Each recorded step of each rank as a row, for tables and for other tools' charts.

The report has means over steps; here is what they are the means of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.report.units import by_cause
from fsdpdoctor.report.value import ByCause, KindTimes
from fsdpdoctor.schema import COLLECTIVE_KINDS, UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step of one rank."""

    rank: int
    step: int
    judged: bool  # whether the report's figures hold it
    duration_ns: int
    micro_batches: int | None
    tokens: int | None
    samples: int | None
    exposed_ns: int | None  # None: stalls were not measured
    exposed_ns_by_kind: KindTimes
    exposed_ns_by_cause: ByCause | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    rss_bytes: int | None  # at its end


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """One part of the budget of one step. A step's parts add up to its duration."""

    rank: int
    step: int
    judged: bool
    part: str
    ns: int


def step_rows(m: Measures) -> tuple[StepRow, ...]:
    """All recorded steps, rank by rank."""
    return tuple(row for rank in m.ranks for row in _of_rank(m, rank))


def budget_rows(m: Measures) -> tuple[BudgetRow, ...]:
    """What each of them went to. Parts that no step has are left out."""
    rows = []
    for rank in m.ranks:
        parts = {part: ns for part, ns in rank.budget_ns.items() if ns.any()}
        for at, (step, judged) in enumerate(
            zip(rank.steps.step.tolist(), rank.judged.tolist(), strict=True)
        ):
            rows += [
                BudgetRow(
                    rank=rank.rank, step=step, judged=judged, part=part, ns=int(ns[at])
                )
                for part, ns in parts.items()
            ]
    return tuple(rows)


def _of_rank(m: Measures, rank: RankMeasures) -> Iterator[StepRow]:
    steps, stalls = rank.steps, rank.stalls
    place = {step: at for at, step in enumerate(steps.step.tolist())}
    at = np.array([place[step] for step in stalls.step.tolist()], dtype=np.int64)

    def summed(ns: Int64s, kind: int | None = None) -> Sequence[int | None]:
        """By step; None where stalls were not measured."""
        if not m.stalls_known:
            return [None] * len(steps)
        sums = np.zeros(len(steps), dtype=np.int64)
        rows = slice(None) if kind is None else stalls.kind == kind
        np.add.at(sums, at[rows], ns[rows])
        return sums.tolist()

    exposed = summed(stalls.duration_ns)
    kinds = {k.key: summed(stalls.duration_ns, k) for k in COLLECTIVE_KINDS}
    causes = {cause: summed(m.causes[rank.rank][cause]) for cause in CAUSES}
    for i in range(len(steps)):
        of_causes = {cause: ns[i] for cause, ns in causes.items()}
        yield StepRow(
            rank=rank.rank,
            step=int(steps.step[i]),
            judged=bool(rank.judged[i]),
            duration_ns=int(steps.duration_ns[i]),
            micro_batches=_known(steps.micro_batches, i),
            tokens=_known(steps.tokens, i),
            samples=_known(steps.samples, i),
            exposed_ns=exposed[i],
            exposed_ns_by_kind=KindTimes(**{key: ns[i] for key, ns in kinds.items()}),
            exposed_ns_by_cause=by_cause(m.evidence, of_causes, told=m.late_ranks_told)
            if m.stalls_known
            else None,
            peak_allocated_bytes=_known(steps.peak_allocated_bytes, i),
            peak_reserved_bytes=_known(steps.peak_reserved_bytes, i),
            rss_bytes=_known(steps.rss_bytes, i),
        )


def _known(values: Int64s, at: int) -> int | None:
    value = int(values[at])
    return None if value == UNKNOWN else value
