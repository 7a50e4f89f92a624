"""Which steps are recorded."""

from __future__ import annotations

import re
from statistics import median
from typing import Protocol

from fsdpdoctor.errors import UsageError

DENSE_STEPS = 12
"""Recorded without a gap at the start: a run of 20 steps keeps at least ten."""
FIRST_STRIDE = 4
"""After those, one step in four: a first guess until the cost is known."""
COST_SHARE = 0.005
"""Of the run's time, dense first steps included. Half of the 1 % that the recorder
promises: the rest is for what it cannot measure of itself (its wrappers' own calls,
colder caches) and for the steps that are not recorded."""
HORIZON = 256
"""Steps by which the dense start has to be paid off: a short run is kept whole."""
STEPS_PER_STRIDE = 64
"""Then the stride doubles: a long run's record grows with its logarithm."""
MAX_STRIDE = 1 << 20


class Sampling(Protocol):
    """Decides on a step before it starts."""

    def records(self, step: int) -> bool:
        """Whether to record a step."""
        ...

    def learn(self, duration_ns: int, cost_ns: int) -> None:
        """A recorded step took so long, of which the recorder took so much."""
        ...


class EveryStep:
    """One step in `every`, between `first` and before `end`."""

    def __init__(self, every: int = 1, first: int = 0, end: int | None = None) -> None:
        self.every = every
        self._first = first
        self._end = end

    def records(self, step: int) -> bool:
        """Whether the step is in the range and on the grid."""
        inside = step >= self._first and (self._end is None or step < self._end)
        return inside and (step - self._first) % self.every == 0

    def learn(self, duration_ns: int, cost_ns: int) -> None:
        """The user has chosen: nothing is adapted."""


class Adaptive:
    """Every step at first, then as many as the recorder's cost allows.

    Strides are powers of two on one grid: ranks that measured different costs
    still record common steps, without a word between them.
    """

    def __init__(self) -> None:
        self._stride = FIRST_STRIDE
        self._durations: list[int] = []
        self._costs: list[int] = []

    def records(self, step: int) -> bool:
        """Whether the step is early, or on the grid."""
        return step < DENSE_STEPS or step % self._stride == 0

    def learn(self, duration_ns: int, cost_ns: int) -> None:
        """Widen the stride where recording costs more than it may."""
        self._durations.append(duration_ns)
        self._costs.append(cost_ns)
        later = len(self._costs) - DENSE_STEPS
        if later < 0:
            return
        while self._share() > COST_SHARE and self._stride < MAX_STRIDE:
            self._stride *= 2
        if later > 0 and later % STEPS_PER_STRIDE == 0:
            self._stride = min(self._stride * 2, MAX_STRIDE)

    def _share(self) -> float:
        """What recording takes of a run of HORIZON steps, or up to the next one."""
        # Medians: the first steps hold one-time costs, and any step may be hit by
        # another process.
        step_ns = max(median(self._durations), 1)
        one_ns = median(self._costs[-DENSE_STEPS:])
        steps = max(HORIZON, self._stride)
        start_ns = sum(self._costs[:DENSE_STEPS])
        return (start_ns + one_ns * steps / self._stride) / (step_ns * steps)


class AroundProfiler:
    """Records what another sampling does, and steps that somebody else captures, but
    not the steps before and after those, which hold the capture's start and end.
    """

    def __init__(self, sampling: Sampling, captured: range) -> None:
        self.every = sampling.every if isinstance(sampling, EveryStep) else 1
        self._sampling = sampling
        self._captured = captured

    def records(self, step: int) -> bool:
        """Whether the step is captured, or recorded anyway and not beside those."""
        if step in (self._captured.start - 1, self._captured.stop):
            return False
        return step in self._captured or self._sampling.records(step)

    def learn(self, duration_ns: int, cost_ns: int) -> None:
        """The other sampling adapts."""
        self._sampling.learn(duration_ns, cost_ns)


def sampling_of(steps: str | None, every: int | None) -> Sampling:
    """What `--steps A:B` and `--every K` ask for. Raises UsageError."""
    if every is not None and every < 1:
        raise UsageError(f"--every is {every}, expected 1 or more")
    if steps is None:
        return Adaptive() if every is None else EveryStep(every)
    found = re.fullmatch(r"(\d{0,18}):(\d{0,18})", steps)
    if found is None:
        raise UsageError(f"--steps is {steps!r}, expected A:B, for example 10:20")
    first = int(found[1] or 0)
    end = int(found[2]) if found[2] else None
    if end is not None and end <= first:
        raise UsageError(f"--steps {steps} holds no step: B must be above A")
    return EveryStep(every or 1, first, end)
