"""The script's own lines in steps that are set aside, as every N-th may be (FD902)."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.quantities import count, duration, percent
from fsdpdoctor.schema import Activity, one_of

# Of the time of judged steps and those that are set aside: as FD902's own warning.
LEAST_SHARE = 0.25

# One long step may be the machine's; from two on it is a habit of the script.
LEAST_STEPS = 2

NOT_HERE = (Activity.EDGE, Activity.CHECKPOINT)
"""What no sample saw, and what FD405 tells."""


class Aside(NamedTuple):
    """What one rank's script does in the steps that are set aside."""

    rank: int
    steps: tuple[int, ...]
    lines: tuple[tuple[str, Activity, int], ...]  # nanoseconds, the most first
    share: float

    def says(self) -> str:
        """In words."""
        ns = sum(ns for _, _, ns in self.lines)
        where = self.lines[0][0]
        numbers = ", ".join(map(str, self.steps[:4]))
        more = ", ..." if len(self.steps) > 4 else ""
        return (
            f"{count(len(self.steps), 'long step')} ({numbers}{more}), which no mean "
            f"counts, spend {duration(ns / len(self.steps))} each in the script's own "
            f"lines on rank {self.rank}, {percent(self.share)} of the recorded time "
            f"after warm-up, most of it at {where}"
        )


def script_aside(m: Measures) -> Aside | None:
    """The rank that spends most so; None where it is little."""
    most = max(
        (one for rank in m.ranks if (one := _of_rank(rank)) is not None),
        key=lambda one: one.share,
        default=None,
    )
    return most if most is not None and most.share >= LEAST_SHARE else None


def _of_rank(rank: RankMeasures) -> Aside | None:
    aside = one_of(rank.steps.step, rank.outliers)
    gaps = rank.gaps.rows(
        one_of(rank.gaps.step, rank.outliers) & ~one_of(rank.gaps.activity, NOT_HERE)
    )
    every_ns = int(rank.steps.duration_ns[aside | rank.judged].sum())
    steps = sorted(set(gaps.step.tolist()))
    if len(steps) < LEAST_STEPS or not every_ns:
        return None
    found: Counter[tuple[str, Activity]] = Counter()
    for activity, site, ns in zip(
        gaps.activity.tolist(), gaps.site.tolist(), gaps.ns.tolist(), strict=True
    ):
        found[rank.name(site) or "?", Activity(activity)] += ns
    lines = tuple((where, what, ns) for (where, what), ns in found.most_common())
    share = sum(ns for _, _, ns in lines) / every_ns
    return Aside(rank.rank, tuple(steps), lines, share)
