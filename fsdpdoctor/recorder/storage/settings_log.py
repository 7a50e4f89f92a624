"""Which steps run under settings that are not the script's own, and are not recorded
while any are on trial: what is compared then is not to be compared with the recorder's
cost in some steps, and a report is of settings that stay.
"""

from __future__ import annotations

from fsdpdoctor.recorder.storage.sampling import DENSE_STEPS, EveryStep, Sampling
from fsdpdoctor.schema import UNKNOWN, SettingsSpec


class TunedSampling:
    """Records what another sampling does, but no trial, and more once something is
    kept.
    """

    def __init__(self, sampling: Sampling) -> None:
        self.every = sampling.every if isinstance(sampling, EveryStep) else 1
        self.step = 0  # the one that begins next, or is under way
        self.trying = False
        self._sampling = sampling
        self._dense = 0
        self._last = (UNKNOWN, False)

    def records(self, step: int) -> bool:
        """Whether no trial is on, and it is recorded anyway, or soon after a change."""
        self.step = step
        if self.trying:
            return False
        if self._last[0] != step:
            wanted = self._dense > 0 or self._sampling.records(step)
            self._dense = max(0, self._dense - 1)
            self._last = (step, wanted)
        return self._last[1]

    def learn(self, duration_ns: int, cost_ns: int) -> None:
        """The other sampling adapts."""
        self._sampling.learn(duration_ns, cost_ns)

    def changed(self) -> None:
        """Settings were kept: record as at a run's start."""
        self._dense = DENSE_STEPS


class SettingsLog:
    """What a rank's header says of it."""

    def __init__(self) -> None:
        self._words: list[tuple[str, bool]] = []
        self._steps: list[list[tuple[int, int]]] = []
        self._now: tuple[str, bool] | None = None

    def uses(self, words: str | None, step: int, *, trial: bool = False) -> None:
        """From a step on; None: the script's own."""
        now = None if words is None else (words, trial)
        if now == self._now:
            return
        if self._now is not None:
            ranges = self._steps[self._words.index(self._now)]
            first, _ = ranges.pop()
            if step > first:
                ranges.append((first, step))
        self._now = now
        if now is not None:
            if now not in self._words:
                self._words.append(now)
                self._steps.append([])
            self._steps[self._words.index(now)].append((step, UNKNOWN))

    def specs(self) -> tuple[SettingsSpec, ...]:
        """All that were in force for a step at least."""
        return tuple(
            SettingsSpec(words=words, trial=trial, steps=tuple(steps))
            for (words, trial), steps in zip(self._words, self._steps, strict=True)
            if steps
        )
