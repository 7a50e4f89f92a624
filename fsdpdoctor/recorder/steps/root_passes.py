"""A root's forwards, whole: what they took, and who asked for one without gradients."""

from __future__ import annotations

import sys
from typing import Any

from fsdpdoctor.recorder import kinds, lanes, phases
from fsdpdoctor.recorder.host.call_stack import CallStack
from fsdpdoctor.recorder.steps.micro_batches import length_of
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.schema import UNKNOWN, Flag

_FUNCTIONS = 6
"""So many of the script's functions around a pass are looked at for its purpose."""


class RootPasses:
    """The forward that runs."""

    def __init__(self, recording: Recording) -> None:
        self._rec = recording
        self._stack = CallStack()
        self._start = UNKNOWN
        self._flags = 0
        self._length = UNKNOWN
        self._name = UNKNOWN

    def begins(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, grad: bool
    ) -> None:
        """A root's forward starts."""
        rec = self._rec
        self._start = rec.tick()
        self._flags, self._name = 0, UNKNOWN
        self._length = length_of(args, kwargs)
        if grad:
            return
        self._flags = int(Flag.NO_GRAD)
        if getattr(module, "training", True) is False:
            self._flags |= Flag.EVAL
        site = self._stack.site(sys._getframe(), _FUNCTIONS)
        functions = " < ".join(name for name in site.functions if name != "<module>")
        self._name = rec.names.id(f"{site.place} {functions}".rstrip())

    def ended(self, unit: int) -> None:
        """It has ended."""
        rec = self._rec
        if self._start == UNKNOWN:
            return  # it began before recording did
        rec.spans.add(
            kinds.ROOT_FORWARD,
            lanes.COMPUTE,
            phases.FORWARD,
            self._flags,
            rec.micro_batch,
            unit,
            self._start,
            rec.tick(),
            name=self._name,
            value=self._length,
        )
        self._start = UNKNOWN
