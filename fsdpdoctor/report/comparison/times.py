"""Times of two runs: which differ by more than their own steps explain.

[Note: Noise of a figure] Two medians must lie apart by four standard errors. The error
is that of the steps' spread, or of what the run's quarters differ by, whichever is
larger: steps beside each other are alike, so that a machine which slowly gets busier
spreads little from step to step and much over the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import MIN_JUDGED_STEPS, RankMeasures
from fsdpdoctor.analysis.step_budget import PARTS
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.report.comparison.difference import Difference
from fsdpdoctor.schema import COLLECTIVE_KINDS, Phase

SURE = 4.0
"""Standard errors that two medians must lie apart. Some hundred figures are compared
at once, so three (one in 370 by chance) would find something every time."""

QUARTERS = 4

MAD_TO_DEVIATION = 1.4826
"""Of a normal distribution; the median's standard error is 1.2533 times the mean's."""

MEDIAN_ERROR = 1.2533

_WAITS = "exposed_"
"""How parts begin in which a rank waits for others, or for the wire."""

Floats = npt.NDArray[np.float64]


def time_differences(
    a: Measures, b: Measures, smallest_ns: float
) -> Iterator[Difference]:
    """Figures of the run and of its units, then those in which ranks differ."""
    samples_a, samples_b = _samples(a), _samples(b)
    for key in (key for key in samples_a if key in samples_b):
        apart = _Apart.of(samples_a[key], samples_b[key], smallest_ns)
        if apart is not None and apart.sure:
            yield apart.difference(*key)
    yield from _of_single_ranks(a, b, smallest_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Apart:
    """Two medians, and how far they must lie apart."""

    a: float
    b: float
    noise: float

    @classmethod
    def of(cls, a: Floats, b: Floats, smallest_ns: float) -> _Apart | None:
        """None where one has too few steps."""
        if min(len(a), len(b)) < MIN_JUDGED_STEPS:
            return None
        return cls(
            a=float(np.median(a)),
            b=float(np.median(b)),
            noise=max(SURE * math.hypot(_error(a), _error(b)), smallest_ns),
        )

    @property
    def sure(self) -> bool:
        return abs(self.b - self.a) > self.noise

    def difference(
        self, figure: str, unit: str | None, rank: int | None = None
    ) -> Difference:
        """In the words of a report."""
        return Difference(
            kind="time",
            figure=figure,
            unit=unit,
            rank=rank,
            a=round(self.a),
            b=round(self.b),
            change=round(self.b - self.a),
            noise=round(self.noise),
        )


def _error(samples: Floats) -> float:
    """The standard error of a median; of few steps a larger one, as Student's
    distribution has it (within 15 % of it for this many errors, from five steps on).
    """
    spread = float(np.median(np.abs(samples - np.median(samples))))
    error = MEDIAN_ERROR * MAD_TO_DEVIATION * spread / math.sqrt(len(samples))
    error *= 1 + 8 / (len(samples) - 1)
    if len(samples) < QUARTERS * MIN_JUDGED_STEPS:
        return error
    middles = [np.median(part) for part in np.array_split(samples, QUARTERS)]
    return max(error, float(np.std(middles, ddof=1)) / math.sqrt(QUARTERS))


def _of_single_ranks(
    a: Measures, b: Measures, smallest_ns: float
) -> Iterator[Difference]:
    """What a rank spends otherwise than before, where not all of them do."""
    if a.rank_numbers != b.rank_numbers or len(a.ranks) < 2:
        return
    for part in (part for part in PARTS if not part.startswith(_WAITS)):
        apart = {
            before.rank: _Apart.of(
                before.budget_ns[part][before.judged].astype(np.float64),
                after.budget_ns[part][after.judged].astype(np.float64),
                smallest_ns,
            )
            for before, after in zip(a.ranks, b.ranks, strict=True)
        }
        known = {rank: found for rank, found in apart.items() if found is not None}
        if len(known) < 2:
            continue
        changes = [found.b - found.a for found in known.values()]
        least = min(changes, key=abs)
        for rank, found in known.items():
            unlike = abs(found.b - found.a - least) > found.noise
            if found.sure and unlike:
                yield found.difference(f"budget_ns_per_step.{part}", None, rank)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepMeans:
    """A run's judged steps: what each one's rows add up to, as the mean over ranks."""

    steps: Int64s  # [S], ascending
    ranks: Floats  # [S] that judge each of them

    @classmethod
    def of(cls, m: Measures) -> StepMeans:
        """Of a run."""
        judged = (rank.judged_steps for rank in m.ranks)
        every = np.concatenate([np.empty(0, dtype=np.int64), *judged])
        steps, ranks = np.unique(every, return_counts=True)
        return cls(steps=steps, ranks=ranks.astype(np.float64))

    def mean(self, rows: Iterable[tuple[Int64s, Int64s]]) -> Floats:
        """[S], of rows of any rank: the judged step of each, and its amount."""
        total = np.zeros(len(self.steps))
        for step, amount in rows:
            np.add.at(total, np.searchsorted(self.steps, step), amount)
        return total / self.ranks


def _samples(m: Measures) -> dict[tuple[str, str | None], Floats]:
    """By figure and unit: one value per judged step, the mean over its ranks."""
    rows: dict[tuple[str, str | None], list[tuple[Int64s, Int64s]]] = {}
    for rank in m.ranks:
        for key, step, amount in _rank_samples(rank, m.stalls_known):
            rows.setdefault(key, []).append((step, amount))
    means = StepMeans.of(m)
    return {key: means.mean(found) for key, found in rows.items()}


def _rank_samples(
    rank: RankMeasures, stalls_known: bool
) -> Iterator[tuple[tuple[str, str | None], Int64s, Int64s]]:
    """Figures of one rank: (figure, unit), the steps of its amounts, the amounts."""
    judged = rank.judged_steps
    yield ("step_time_ns", None), judged, rank.steps.duration_ns[rank.judged]
    for part, amount in rank.budget_ns.items():
        yield (f"budget_ns_per_step.{part}", None), judged, amount[rank.judged]
    stalls = rank.stalls.rows(rank.in_judged(rank.stalls.step))
    times = rank.unit_times.rows(rank.in_judged(rank.unit_times.step))
    for index, unit in enumerate(rank.units):
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            word = phase.key
            rows = times.rows((times.unit == index) & (times.phase == phase))
            yield (f"{word}_ns", unit.fqn), rows.step, rows.compute_ns
            if not stalls_known:
                continue
            mine = stalls.rows((stalls.unit == index) & (stalls.phase == phase))
            for kind in COLLECTIVE_KINDS:
                waits = mine.rows(mine.kind == kind)
                figure = f"exposed_ns.{word}.{kind.key}"
                yield (figure, unit.fqn), waits.step, waits.duration_ns
