"""Which optimizers take turns in one step.

A generator's optimizer and a discriminator's step one after the other, each after
passes of its own: together they are one iteration. A step is over when one of them is
about to step again. While an optimizer that usually steps has not, that is not known
before the next optimizer step; else it is known at once.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

PATIENCE = 3
"""Steps for which an optimizer is waited for that was made, or used, and does not
step: one that steps every hundredth time makes no steps of a hundred."""


@dataclass(slots=True, kw_only=True)
class _Known:
    ref: weakref.ref[Any]
    idle_steps: int = 0
    stepped: bool = False  # in the step that runs
    late: bool = False  # made when others had stepped: it has no turn in this step


class OptimizerTurns:
    """The optimizers of the process, and which of them have stepped."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._running: int | None = None  # one that calls passes itself
        self.any_stepped = False

    def made(self, optimizer: Any) -> None:
        """One was made, or is seen for the first time."""
        known = self._known.get(id(optimizer))
        if known is None or known.ref() is not optimizer:
            late = any(one.stepped for one in self._known.values())
            self._known[id(optimizer)] = _Known(ref=weakref.ref(optimizer), late=late)

    def begins_anew(self, optimizer: Any) -> bool:
        """Whether a turn of one is the next step's: it has stepped in this one
        already, or was made when others had.
        """
        known = self._known.get(id(optimizer))
        if known is None or known.ref() is not optimizer:
            return False
        return known.stepped or known.late

    def steps(self, optimizer: Any, *, inner: bool = False) -> None:
        """One steps."""
        self.made(optimizer)
        known = self._known[id(optimizer)]
        known.stepped, known.idle_steps = True, 0
        self.any_stepped = True
        if not inner:
            self._running = id(optimizer)

    def ended(self) -> None:
        """Its step is over."""
        self._running = None

    def others_may_follow(self) -> bool:
        """Whether another optimizer may belong to this step, too."""
        return any(
            not known.stepped
            and not known.late
            and known.idle_steps < PATIENCE
            and known.ref() is not None
            for known in self._known.values()
        )

    def step_ended(self) -> None:
        """The turns begin anew."""
        for number, known in list(self._known.items()):
            if known.ref() is None:
                del self._known[number]
            known.idle_steps += not known.stepped
            # A step that ends within a closure is the one before the optimizer's.
            known.stepped = number == self._running
            known.late = False
