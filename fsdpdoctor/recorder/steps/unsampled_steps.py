"""Times of the steps that are not recorded, until the next recorded one is written.

A run may go on for a million steps after the last one that is recorded: what is kept
of a step is three integers, and no event of the device.
"""

from __future__ import annotations

from array import array

import numpy as np

from fsdpdoctor.recorder.steps.step_bounds import StepBounds
from fsdpdoctor.recorder.storage.clocks import Clock
from fsdpdoctor.schema import StepTimes

SETTLE_STEPS = 256
"""So many keep their ticks: on a device that is far behind they are not times yet."""


class TimedSteps:
    """Consecutive unrecorded steps."""

    def __init__(self) -> None:
        self._settled = array("q")  # step, start and end of each
        self._marked: list[StepBounds] = []

    def __len__(self) -> int:
        return len(self._settled) // 3 + len(self._marked)

    @property
    def last(self) -> StepBounds | None:
        """The last step, unless its times are settled."""
        return self._marked[-1] if self._marked else None

    @property
    def many_marked(self) -> bool:
        """Whether it is time to settle."""
        return len(self._marked) >= SETTLE_STEPS

    def add(self, bounds: StepBounds) -> None:
        """One more step has ended."""
        self._marked.append(bounds)

    def settle(self, clock: Clock) -> None:
        """Turn ticks into times, if the device has got there, and let go of them."""
        last = self.last
        if last is None or not clock.ready(last.end.tick):
            return
        for row in self._times(clock).tolist():
            self._settled.extend(row)
        clock.release(last.start.tick)
        self._marked = []

    def table(self, clock: Clock) -> StepTimes:
        """All of them. The clock must be ready."""
        if not len(self):
            return StepTimes.empty()
        settled = np.array(self._settled, dtype=np.int64).reshape(-1, 3)
        rows = np.concatenate((settled, self._times(clock)))
        return StepTimes.build(
            len(rows), step=rows[:, 0], start_ns=rows[:, 1], end_ns=rows[:, 2]
        )

    def _times(self, clock: Clock) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        marked = self._marked
        ticks = [(b.step, b.start.tick, b.end.tick) for b in marked]
        rows = np.array(ticks, dtype=np.int64).reshape(-1, 3)
        for column in (1, 2):
            rows[:, column] = clock.resolve(rows[:, column])
        return rows
