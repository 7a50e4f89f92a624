"""Steps of an optimizer that is not torch's, which only gradients tell.

Where an optimizer of torch's is there, too, gradients may be used before it steps for
the first time: by an ascent of the weights within the step, by clipping each
micro-batch's, by a scaler. So it is waited for, and where it never steps, steps are
told afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from fsdpdoctor.recorder.steps.gradients_used import GradientsUsed
from fsdpdoctor.recorder.steps.step_bounds import Moment
from fsdpdoctor.recorder.storage.recording import BufferPosition

WAITED_FOR = 32
"""So many uses of gradients: more than micro-batches, or ascents, that anybody makes
of one step as a rule."""


class End(NamedTuple):
    """Where a step may have ended."""

    moment: Moment
    rows: BufferPosition
    last: int  # its last pass


class OwnSteps:
    """Where steps end if nobody else says it."""

    def __init__(self) -> None:
        self._gradients = GradientsUsed()
        self._candidate: End | None = None
        self._ends: list[End] = []
        self.sure = False  # that no optimizer of torch's steps

    def remember(self, params: Iterable[Any]) -> None:
        """A backward has ended: look at some of its gradients."""
        self._gradients.remember(params)

    def may_end(self, end: End) -> None:
        """Its step, perhaps: what comes will tell."""
        self._candidate = end

    def used(self, params: Iterable[Any]) -> bool:
        """Whether the gradients of the last backward have been used since."""
        if not self._gradients.used(params):
            return False
        self._gradients.forget()
        self._take_candidate()
        return True

    @property
    def may_wait(self) -> bool:
        """Whether an optimizer that is there may still step."""
        return len(self._ends) < WAITED_FOR

    def settle(self) -> list[End]:
        """None steps: where steps have ended."""
        self.sure = True
        ends, self._ends = self._ends, []
        return ends

    def stepped(self) -> None:
        """One steps."""
        self.sure = False
        self._gradients.forget()
        self._ends, self._candidate = [], None

    def ended(self, params: Iterable[Any]) -> bool:
        """The run ends. Whether steps were waited for, the last of which ends, too."""
        self.used(params)
        if self._ends:
            self._take_candidate()
        return bool(self._ends)

    def _take_candidate(self) -> None:
        if self._candidate is not None:
            self._ends.append(self._candidate)
            self._candidate = None
