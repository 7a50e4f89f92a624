"""Tries changes for real, in short runs one after the other, and keeps what holds.

[Note: A fair trial] Machines drift, so runs are interleaved: each round runs every
candidate that is still in, then the script as it is. After a round the slower half
is out. A change is kept where it ran MIN_RUNS times at least, and its median beats the
baseline's by more than the runs of either differ among themselves; until it has run
REPEATS times it is taken to vary as much as the baseline does. Where a change promises
the same numbers, the parameters after the last step must be those of the baseline, to
the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.errors import FsdpDoctorError, UsageError
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.step import Step
from fsdpdoctor.simulate.plans.change_step import changed, forbidden
from fsdpdoctor.simulate.plans.forecast import code_of
from fsdpdoctor.simulate.plans.in_place import IN_PLACE
from fsdpdoctor.simulate.plans.plan_code import plan_code
from fsdpdoctor.simulate.plans.predict import Prediction, Replay
from fsdpdoctor.simulate.plans.search import code_cost, possible, search, single_changes
from fsdpdoctor.simulate.plans.settings import settings

SAME_BITS = frozenset(
    {
        "forward_prefetch",
        "backward_prefetch",
        "forward_prefetch_of",
        "backward_prefetch_of",
        "unshard_async_op",
        "reshard_after_forward",
        "separate_reduce_scatter_group",
        "max_input_buffers",
    }
)
"""Changes that move the same bytes at another time. Others may sum in another order."""

MIN_GAIN = 0.02
"""Of the step. Medians of two runs of one job, back to back, differ by up to this
even where their steps are steady."""

MIN_RUNS = 2
"""Of a candidate, before it may be kept: one run says nothing of its own spread."""

REPEATS = 3
"""Runs after which the candidate that is ahead need not prove itself again."""


class Verdict(StrEnum):
    """What became of a candidate."""

    KEPT = "kept"
    FASTER = "faster"  # but another one was kept, or it ran only once
    NO_GAIN = "no gain"
    OTHER_BITS = "other bits"
    FAILED = "failed"
    NOT_RUN = "not run"  # the budget was spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One short run."""

    step_ns: int
    exposed_ns: Mapping[str, int] = field(default_factory=dict)  # by collective
    bits: tuple[str, ...] = ()  # hash of each rank's parameters; empty: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A run that did not come to its end, or cannot be read."""

    reason: str


Outcome = Measured | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan to try, and what is expected of it."""

    plan: Plan
    step: Step  # as the plan makes it
    prediction: Prediction | None = None  # None: the replay was too far off
    code: str = ""  # to paste
    constraints: RunConstraints | None = None  # of the run that it was made from

    @property
    def apply(self) -> dict[str, Any]:
        """The plan by name of unit, for a plan file."""
        return settings(self.plan, self.step, self.constraints)

    @property
    def same_bits(self) -> bool:
        """Whether the training must come out the same to the bit."""
        return promises_same_bits(self.plan)


def promises_same_bits(plan: Plan) -> bool:
    """Whether a plan changes no sum's order and no dtype."""
    return set(plan.changes) <= SAME_BITS


@dataclass(slots=True, kw_only=True)
class Row:
    """One line of the table: what was tried, and how its runs went."""

    candidate: Candidate | None  # None: the script as it is
    runs: list[Outcome] = field(default_factory=list)
    verdict: Verdict = Verdict.NOT_RUN

    @property
    def measured(self) -> list[Measured]:
        return [run for run in self.runs if isinstance(run, Measured)]

    @property
    def failure(self) -> str | None:
        """Why a run failed; such a candidate is not run again."""
        return next((r.reason for r in self.runs if isinstance(r, Failed)), None)

    @property
    def step_ns(self) -> int | None:
        """The median of its runs."""
        steps = [run.step_ns for run in self.measured]
        return round(median(steps)) if steps else None

    @property
    def noise_ns(self) -> float:
        """How far its runs are from their middle."""
        steps = [run.step_ns for run in self.measured]
        return (max(steps) - min(steps)) / 2 if steps else 0.0

    def exposed_ns(self, kind: str) -> int | None:
        """The median of exposed time of one kind of collective."""
        values = [run.exposed_ns[kind] for run in self.measured]
        return round(median(values)) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneLimits:
    """How much may be run."""

    max_runs: int  # the baseline's among them
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.max_runs < 2:
            raise UsageError(
                f"--max-runs is {self.max_runs}; expected at least 2: the script as it "
                "is, and one change"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What was tried, and what is to be kept."""

    baseline: Row
    rows: tuple[Row, ...]  # of the candidates, best first
    deterministic: (
        bool | None
    )  # whether baseline runs agree to the bit; None: not known
    withheld: str | None = None  # why there are no predictions
    stopped: str | None = None  # why it ended before every candidate had its turn

    @property
    def kept(self) -> Row | None:
        """The change to keep; None: leave the script as it is."""
        return next((row for row in self.rows if row.verdict is Verdict.KEPT), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Changes that are tried."""

    same_bits: bool = False  # which promise them
    restart_only: bool = False  # which no running job can be told

    def takes(self, plan: Plan) -> bool:
        """Whether a change is one of them."""
        if self.restart_only and set(plan.changes) <= IN_PLACE:
            return False
        return promises_same_bits(plan) or not self.same_bits


def candidates_of(
    base: Replay, which: Which, limit_bytes: int | None = None
) -> list[Candidate]:
    """What is worth trying, most promising first.

    Where the replay is too far off to predict, single changes are tried unpredicted.
    """
    if base.usable:
        found = [
            Candidate(
                plan=p.plan,
                step=p.step,
                prediction=p,
                code=code_of(base, p),
                constraints=base.calibration.constraints,
            )
            for p in sorted(search(base, limit_bytes), key=lambda p: p.step_ns)
            if p.gain_ns > 0
        ]
    else:
        found = list(_unpredicted(base))
    return [candidate for candidate in found if which.takes(candidate.plan)]


def _unpredicted(base: Replay) -> list[Candidate]:
    calibration = base.calibration
    found: list[Candidate] = []
    for plan in possible(single_changes(base), calibration.constraints.available):
        if forbidden(plan, calibration.step) is not None:
            continue
        try:
            made = changed(plan, calibration.step, calibration.constraints)
        except UsageError:
            continue  # this model has no such parts
        known = calibration.constraints
        lines = plan_code(plan, calibration.step, made.step, known)
        found.append(
            Candidate(plan=plan, step=made.step, code=lines, constraints=known)
        )
    return sorted(found, key=lambda c: code_cost(c.plan))


class Tuner:
    """Runs candidates until the budget is spent; see [Note: A fair trial]."""

    def __init__(
        self,
        run: Callable[[Candidate | None], Outcome],
        clock: Callable[[], float],
        budget: TuneLimits,
    ) -> None:
        self._run = run
        self._clock = clock
        self._budget = budget
        self._started = clock()
        self._runs = 0
        self._longest = 0.0
        self._stopped: str | None = None
        self.baseline = Row(candidate=None)

    def measure_baseline(self) -> Measured:
        """The first run, of the script as it is. Raises FsdpDoctorError."""
        self._run_row(self.baseline)
        first = self.baseline.runs[0]
        if isinstance(first, Failed):
            raise FsdpDoctorError(f"the script as it is: {first.reason}")
        return first

    def tune(
        self, candidates: Sequence[Candidate], withheld: str | None = None
    ) -> Tuning:
        """Try candidates, most promising first. The baseline has run once."""
        # Half of the runs are for second looks, and the baseline's.
        width = max(1, (self._budget.max_runs - 2) // 2)
        rows = [Row(candidate=candidate) for candidate in candidates[:width]]
        live = list(rows)
        while live and self._round(live):
            live = self._still_in(live)
        self._judge(rows)
        rows.sort(key=lambda row: (_RANK[row.verdict], row.step_ns or 0))
        return Tuning(
            baseline=self.baseline,
            rows=tuple(rows),
            deterministic=self._deterministic(),
            withheld=withheld,
            stopped=self._stopped,
        )

    def _round(self, live: Sequence[Row]) -> bool:
        """One run of each, and of the baseline; False: the budget is spent."""
        for row in (*live, self.baseline):
            if not self._may_run():
                return False
            self._run_row(row)
        return True

    def _may_run(self) -> bool:
        budget = self._budget
        if self._runs >= budget.max_runs:
            self._stopped = f"{self._runs} runs were made"
            return False
        spent = self._clock() - self._started
        if budget.seconds is not None and spent + self._longest > budget.seconds:
            self._stopped = "the time was up"
            return False
        return True

    def _run_row(self, row: Row) -> None:
        before = self._clock()
        row.runs.append(self._run(row.candidate))
        self._runs += 1
        self._longest = max(self._longest, self._clock() - before)

    def _still_in(self, live: Sequence[Row]) -> list[Row]:
        good = [row for row in live if self._is_sound(row)]
        base_ns = self.baseline.step_ns or 1
        # Of those as fast the one that is cheaper to write stays in.
        alike = MIN_GAIN * base_ns
        good.sort(key=lambda row: ((row.step_ns or 0) // alike, _cost(row)))
        good = good[: max(1, (len(live) + 1) // 2)]
        return [] if good and len(good[0].runs) >= REPEATS else good

    def _is_sound(self, row: Row) -> bool:
        return row.failure is None and not self._has_other_bits(row)

    def _has_other_bits(self, row: Row) -> bool:
        """Whether a promise of the same bits was broken."""
        if row.candidate is None or not row.candidate.same_bits:
            return False
        if not self._deterministic():
            return False  # there is nothing to hold it against
        wanted = self.baseline.measured[0].bits
        return any(run.bits != wanted for run in row.measured)

    def _deterministic(self) -> bool | None:
        bits = {run.bits for run in self.baseline.measured}
        if () in bits or len(self.baseline.measured) < 2:
            return None if () in bits else True
        return len(bits) == 1

    def _judge(self, rows: Sequence[Row]) -> None:
        for row in rows:
            row.verdict = self._verdict(row)
        faster = [row for row in rows if row.verdict is Verdict.FASTER]
        faster = [row for row in faster if len(row.measured) >= MIN_RUNS]
        if faster:
            self._best(faster).verdict = Verdict.KEPT

    def _verdict(self, row: Row) -> Verdict:
        if row.failure is not None:
            return Verdict.FAILED
        if row.step_ns is None:
            return Verdict.NOT_RUN
        if self._has_other_bits(row):
            return Verdict.OTHER_BITS
        base_ns = self.baseline.step_ns
        assert base_ns is not None
        own = row.noise_ns
        if len(row.measured) < REPEATS:  # too few to show how much they differ
            own = max(own, self.baseline.noise_ns)
        noise = max(own + self.baseline.noise_ns, MIN_GAIN * base_ns)
        return Verdict.FASTER if base_ns - row.step_ns > noise else Verdict.NO_GAIN

    def _best(self, faster: Sequence[Row]) -> Row:
        """The fastest; of those as fast, the one that was looked at most often, then
        the cheapest to write.
        """
        base_ns = self.baseline.step_ns or 0
        best_ns = min(row.step_ns or 0 for row in faster)
        near = [
            row
            for row in faster
            if (row.step_ns or 0) - best_ns <= max(row.noise_ns, MIN_GAIN * base_ns)
        ]
        return min(near, key=lambda row: (-len(row.runs), _cost(row), row.step_ns))


def _cost(row: Row) -> int:
    return 0 if row.candidate is None else code_cost(row.candidate.plan)


_RANK = {verdict: at for at, verdict in enumerate(Verdict)}
