"""The settings worth trying in a running job: only what may be told to it between two
steps, and nothing that changes a number.

They are found one kind after the other, each on top of what is best so far: prefetch of
all units, then which units stay gathered after forward, then prefetch of single units.
Which units stay gathered is chosen unit by unit, the one first that saves most time for
each byte that it holds, as long as there is room. What is on the way to the best is a
candidate as well: the simulator may be wrong about the last step of the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
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

MOST = 12
"""Candidates that are handed on."""


@dataclass(slots=True, kw_only=True)
class InPlaceSearch:
    """Plans that were simulated, and the best so far."""

    base: Replay
    room_bytes: int | None = None  # more than the run's own peak; None: not known
    going_on: Callable[[], bool] = lambda: True  # False: come to an end
    best: Plan = field(default_factory=Plan)
    _seen: dict[str, tuple[Plan, Outcome]] = field(default_factory=dict)

    @property
    def _step(self) -> Step:
        return self.base.calibration.step

    def candidates(self) -> list[Prediction]:
        """What promises most comes first; none that promises nothing."""
        self._prefetch()
        self._buffers()
        self._gathered()
        self._single_units()
        found: list[Prediction] = []
        for plan in self._distinct():
            prediction = predict(self.base, plan)
            if prediction.gain_ns > 0:
                found.append(prediction)
        return found

    def _distinct(self) -> list[Plan]:
        """The fastest; of those as fast the one that holds least, then the one that is
        shortest to write.
        """
        alike = max(1, round(MIN_STEP * self.base.calibration.measured_ns))
        best: dict[int, tuple[int, int, str]] = {}
        for name, (plan, outcome) in self._seen.items():
            key = outcome.step_ns // alike
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
            Plan(forward_prefetch=ahead, backward_prefetch=back, **more)
            for ahead in (depths if not recomputes(step) else (None,))
            for back in depths
        )

    def _buffers(self) -> None:
        if not self._step.blocking:
            self._take_best(replace(self.best, max_input_buffers=n) for n in BUFFERS)

    def _gathered(self) -> None:
        step = self._step
        left = [
            u
            for u in backward_order(step)
            if step.units[u].reshard_after_forward is True
        ][:MOST_UNITS]
        # Backward's first units are had at no cost of memory: their turn is next.
        for many in (len(left) // 4, len(left) // 2, len(left)):
            names = {step.units[u].fqn: False for u in left[:many]}
            self._take_best([replace(self.best, reshard_after_forward=names)])
        kept = self.best.reshard_after_forward
        left = [u for u in left if step.units[u].fqn not in kept]
        policies = dict(kept)
        while left and self.going_on():
            before = self._outcome(self.best)
            assert before is not None
            rated = [
                (self._rate(before, policies | {step.units[u].fqn: False}), u)
                for u in left
            ]
            rate, best = max(rated)
            if rate <= 0:
                return
            left.remove(best)
            policies |= {step.units[best].fqn: False}
            plan = replace(self.best, reshard_after_forward=policies)
            if not self._take_best([plan]):
                return

    def _rate(self, before: Outcome, policies: dict[str, bool | int]) -> float:
        """Time saved for each byte, of one more unit that stays gathered."""
        plan = replace(self.best, reshard_after_forward=policies)
        after = self._outcome(plan)
        if after is None:
            return 0.0
        saved = before.step_ns - after.step_ns
        return saved / max(after.peak_bytes - before.peak_bytes, 1)

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

    def _take_best(self, plans: Iterator[Plan] | list[Plan]) -> bool:
        """Whether one of them is better than the best, and is it now."""
        now = self._outcome(self.best)
        assert now is not None
        least = MIN_STEP * self.base.calibration.measured_ns
        better = False
        for plan in plans:
            outcome = self._outcome(plan)
            if outcome is not None and outcome.step_ns < now.step_ns - least:
                self.best, now, better = plan, outcome, True
        return better

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
