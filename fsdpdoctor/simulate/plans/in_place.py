"""The settings worth trying in a running job: only what may be told to it between two
steps, and nothing that changes a number.

They are found one kind after the other, each on top of what is best so far: prefetch of
all units, input buffers, which units stay gathered after forward; and again, until
nothing is better: what pays may pay on top of another alone. The way is gone from more
than one start, for the same reason. Then prefetch of single
units. What is on the way to the best is a candidate as well: the simulator may be wrong
about the last step of the way.

Which units stay gathered is chosen unit by unit, the one first that saves most time for
each byte that it holds, as long as there is room. Each of them is a rung: where ranks
have less room than the search knows, what they have room for is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any

from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.errors import UsageError
from fsdpdoctor.simulate.engine.simulate import Outcome, simulate
from fsdpdoctor.simulate.engine.step import Step
from fsdpdoctor.simulate.plans.change_step import (
    backward_order,
    changed,
    forbidden,
    forward_order,
    recomputes,
)
from fsdpdoctor.simulate.plans.predict import Prediction, Replay, predict
from fsdpdoctor.simulate.plans.search import code_cost, possible

IN_PLACE = frozenset(
    {
        *("forward_prefetch", "backward_prefetch"),
        *("forward_prefetch_of", "backward_prefetch_of"),
        *("unshard_async_op", "reshard_after_forward", "max_input_buffers"),
    }
)
"""Changes that a running job can be told."""

DEPTHS = (0, 1, 2, 3)
"""Units ahead. More of them hold memory, and a wire carries one at a time."""

BUFFERS = (2, 3)

MIN_STEP = 0.001
"""Of the step: what gains less is no step on the way."""

MOST_UNITS = 128
"""Of which each is looked at by itself: more take minutes of a core."""

MOST_ROUNDS = 4
"""Of one kind after the other: a third seldom finds anything."""

MOST = 12
"""Candidates that are handed on."""

Policies = dict[str, bool | int]


@dataclass(slots=True, kw_only=True)
class InPlaceSearch:
    """Plans that were simulated, and the best so far."""

    base: Replay
    room_bytes: int | None = None  # more than the run's own peak; None: not known
    going_on: Callable[[], bool] = lambda: True  # False: come to an end
    best: Plan = field(default_factory=Plan)
    _seen: dict[str, tuple[Plan, Outcome]] = field(default_factory=dict)
    _tried: set[str] = field(default_factory=set)  # of these, what is no mere rung
    _rungs: list[Plan] = field(default_factory=list)  # of the last ladder

    @property
    def _step(self) -> Step:
        return self.base.calibration.step

    @property
    def _least_ns(self) -> int:
        return max(1, round(MIN_STEP * self.base.calibration.measured_ns))

    def candidates(self) -> list[Prediction]:
        """What promises most comes first; none that promises nothing."""
        ends: list[tuple[tuple[int, int], Plan, list[Plan]]] = []
        for start in self._starts():
            self.best, self._rungs = start, []
            self._climb()
            outcome = self._outcome(self.best)
            assert outcome is not None
            cost = (outcome.step_ns // self._least_ns, outcome.peak_bytes)
            ends.append((cost, self.best, self._rungs))
        _, self.best, self._rungs = min(ends, key=lambda end: end[0])
        self._single_units()
        return self._promising(self._distinct())

    def _starts(self) -> list[Plan]:
        """The run as it is, and where a way may begin that no single step leads to:
        more buffers let as much be gathered as hides their reductions.
        """
        more = (
            [] if self._step.blocking else [Plan(max_input_buffers=n) for n in BUFFERS]
        )
        return [Plan(), *(plan for plan in more if self._outcome(plan) is not None)]

    def _climb(self) -> None:
        for _ in range(MOST_ROUNDS):
            before = self.best
            self._prefetch()
            self._buffers()
            self._gathered()
            if self.best == before or not self.going_on():
                return

    def rungs(self) -> list[Prediction]:
        """Once candidates are found: the best settings with more and more units that
        stay gathered, so that there is one for each room.
        """
        of = replace(self.best, reshard_after_forward={}).changes
        plans = [
            plan
            for rung in self._rungs
            if self._outcome(plan := replace(rung, **of)) is not None
        ]
        return self._promising(plans)

    def _promising(self, plans: Iterable[Plan]) -> list[Prediction]:
        found = [predict(self.base, plan) for plan in plans]
        found = [prediction for prediction in found if prediction.gain_ns > 0]
        return sorted(found, key=lambda prediction: prediction.step_ns)

    def _distinct(self) -> list[Plan]:
        """The fastest; of those as fast the one that holds least, then the one that is
        shortest to write.
        """
        best: dict[int, tuple[int, int, str]] = {}
        for name in self._tried:
            plan, outcome = self._seen[name]
            key = outcome.step_ns // self._least_ns
            cost = (outcome.peak_bytes, code_cost(plan), name)
            best[key] = min(best.get(key, cost), cost)
        return [self._seen[name][0] for _, (*_, name) in sorted(best.items())[:MOST]]

    # One kind after the other

    def _prefetch(self) -> None:
        step = self._step
        # Without streams a list only helps where the unshard does not block.
        more: dict[str, Any] = {"unshard_async_op": True} if step.blocking else {}
        depths = (None, *DEPTHS)
        self._take_best(
            replace(self.best, forward_prefetch=ahead, backward_prefetch=back, **more)
            for ahead in (depths if not recomputes(step) else (None,))
            for back in depths
        )

    def _buffers(self) -> None:
        if not self._step.blocking:
            self._take_best(replace(self.best, max_input_buffers=n) for n in BUFFERS)

    def _gathered(self) -> None:
        rungs = self._ladder()
        if not rungs:
            return
        self._rungs = rungs
        outcomes = [self._seen[str(plan)][1] for plan in rungs]
        most_ns = min(outcome.step_ns for outcome in outcomes) + self._least_ns
        best = next(at for at, o in enumerate(outcomes) if o.step_ns <= most_ns)
        # What is less is tried, too, where it was said wrongly of the best.
        some = {0, best // 4, best // 2, best}
        self._take_best(rungs[at] for at in sorted(some))

    def _ladder(self) -> list[Plan]:
        """One unit more each time, the one that saves most time for each byte, as far
        as there is room.
        """
        step, on_top = self._step, replace(self.best, reshard_after_forward={})
        names = [
            step.units[u].fqn
            for u in backward_order(step)
            if step.units[u].reshard_after_forward is True
        ][:MOST_UNITS]
        now = self._outcome(on_top)
        rungs: list[Plan] = []
        kept: Policies = {}
        # Of those alike the first in backward: its gather is had at no cost of memory.
        rated = [(float("-inf"), at) for at in range(len(names))]
        heapify(rated)
        while rated and now is not None and self.going_on():
            _, at = heappop(rated)
            plan = replace(on_top, reshard_after_forward=kept | {names[at]: False})
            after = self._outcome(plan)
            if after is None:
                continue  # it has no room, nor will it have
            rate = -_saved_per_byte(now, after)
            if rated and rate > rated[0][0]:
                heappush(rated, (rate, at))  # another may save more
                continue
            kept[names[at]] = False
            now = after
            rungs.append(plan)
        return rungs

    def _single_units(self) -> None:
        step = self._step
        for name, order in (
            ("forward_prefetch", forward_order(step)),
            ("backward_prefetch", backward_order(step)),
        ):
            if getattr(self.best, name) is None or len(order) > MOST_UNITS:
                continue
            for unit in order:
                if not self.going_on():
                    return
                each = dict(getattr(self.best, f"{name}_of"))
                fqn = step.units[unit].fqn
                deeper: list[dict[str, Any]] = [
                    {f"{name}_of": each | {fqn: depth}} for depth in DEPTHS
                ]
                self._take_best([replace(self.best, **one) for one in deeper])

    # One plan

    def _take_best(self, plans: Iterable[Plan]) -> None:
        """Where one of them is better than the best, it is the best now."""
        now = self._outcome(self.best)
        assert now is not None
        for plan in plans:
            outcome = self._outcome(plan)
            if outcome is None:
                continue
            if plan.changes:
                self._tried.add(str(plan))
            if outcome.step_ns < now.step_ns - self._least_ns:
                self.best, now = plan, outcome

    def _outcome(self, plan: Plan) -> Outcome | None:
        """What it comes to; None where it cannot be, or has no room."""
        if not plan.changes:
            return self.base.outcome
        key = str(plan)
        if key not in self._seen:
            outcome = self._simulated(plan)
            if outcome is None:
                return None
            self._seen[key] = plan, outcome
        return self._seen[key][1]

    def _simulated(self, plan: Plan) -> Outcome | None:
        constraints = self.base.calibration.constraints
        if not possible([plan], constraints.available):
            return None
        if forbidden(plan, self._step) is not None:
            return None
        try:
            outcome = simulate(changed(plan, self._step, constraints).step)
        except UsageError:
            return None
        more = outcome.peak_bytes - self.base.outcome.peak_bytes
        if self.room_bytes is not None and more > self.room_bytes:
            return None
        return outcome


def _saved_per_byte(before: Outcome, after: Outcome) -> float:
    """Of time, for each byte more that is held."""
    saved = before.step_ns - after.step_ns
    return saved / max(after.peak_bytes - before.peak_bytes, 1)
