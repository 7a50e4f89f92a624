"""What each rank does more of than the others: why it is late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.straggler_rank import OWN_PARTS
from fsdpdoctor.report.value import RankRow

LEAST_SHARE = 0.01
"""Of the step: what a rank does more of by less is no cause of anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """One rank against the others."""

    rank: int
    host: str | None
    step_ns: int | None  # median
    caused_ns: int | None  # waiting of all others, per step; None: not matched
    part: str | None  # of the step budget: what it does more of; None: nothing
    excess_ns: int = 0  # of that part, per step, over the others' mean: as FD401's


def rank_budgets(m: Measures) -> dict[int, dict[str, int]]:
    """The mean step of each rank, by part."""
    return {
        rank.rank: replace(m, ranks=(rank,)).budget_ns_per_step() for rank in m.ranks
    }


def lateness(
    of_rank: Mapping[int, dict[str, int]], rows: Sequence[RankRow]
) -> tuple[Lateness, ...]:
    """Every rank, by `rank_budgets`, the one that the others wait for most first."""
    known = [budget for budget in of_rank.values() if budget]
    totals = {part: sum(one.get(part, 0) for one in known) for part in OWN_PARTS}
    others = max(len(known) - 1, 1)
    found = [_of(row, of_rank.get(row.rank, {}), totals, others) for row in rows]
    return tuple(sorted(found, key=lambda one: (-(one.caused_ns or 0), one.rank)))


def _of(
    row: RankRow, budget: dict[str, int], totals: dict[str, int], others: int
) -> Lateness:
    excess = {
        part: own - (ns - own) / others
        for part, ns in totals.items()
        if (own := budget.get(part, 0))
    }
    part = max(excess, key=lambda name: excess[name], default=None)
    least = LEAST_SHARE * sum(budget.values())
    if part is None or excess[part] <= least:
        part = None
    return Lateness(
        rank=row.rank,
        host=row.host,
        step_ns=row.step_ns,
        caused_ns=row.wait_caused_ns_per_step,
        part=part,
        excess_ns=round(excess[part]) if part is not None else 0,
    )
