"""Optimizers as they are made, step, and are left out by a scaler."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fsdpdoctor.recorder import kinds, phases
from fsdpdoctor.recorder.brackets import bracketing
from fsdpdoctor.recorder.patching import Patches, unasked
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.schema import UNKNOWN

HOOKS_LOST = (
    "the script threw all optimizers' hooks away, and with them those by which steps "
    "are found: what came after the last whole step is in step {step}"
)


class OptimizerSteps(Protocol):
    """Who is told of optimizers."""

    def optimizer_made(self, optimizer: Any) -> None:
        """One was made."""
        ...

    def optimizer_begins(self, optimizer: Any, *, inner: bool) -> None:
        """One steps, as a part of another's step where it is inner."""
        ...

    def optimizer_ended(self, start: int, start_ns: int) -> None:
        """It began at a tick and a host time, and has just ended."""
        ...

    def optimizer_skipped(self, optimizer: Any) -> None:
        """A gradient scaler was to step it, and did not."""
        ...


class OptimizerHooks:
    """In every step, recorded or not.

    Dynamo inlines the hooks of a step that is compiled. There they are nothing: kept
    from it, they would break the graph, and without a graph the step is not compiled
    at all; traced, they would be part of it.
    """

    def __init__(
        self,
        recording: Recording,
        steps: OptimizerSteps,
        saw: Callable[[torch.optim.Optimizer], None],
    ) -> None:
        self._rec = recording
        self._steps = steps
        self._saw = saw
        self._patches = Patches()
        self._handles: list[Any] = []
        self._began: tuple[int, int] | None = None
        self._inside = UNKNOWN  # the micro-batch in whose backward it began
        self._begun = 0  # so many steps
        self.lost: str | None = None  # what was, in words

    def attach(self) -> None:
        """See them."""
        self._handles = [
            register_optimizer_step_pre_hook(self._begins),
            register_optimizer_step_post_hook(self._ended),
        ]
        guard = self._rec.guard
        made = bracketing(guard, _first, self._made)
        self._patches.wrap(torch.optim.Optimizer, "__init__", made)
        scaled = bracketing(guard, self._scaler_begins, self._scaler_ended)
        self._patches.wrap(torch.amp.GradScaler, "step", scaled)

    def detach(self) -> None:
        """See nothing any more."""
        self._patches.undo()
        if any(handle.id not in handle.hooks_dict_ref() for handle in self._handles):
            self.lost = HOOKS_LOST.format(step=self._rec.step)
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def running(self) -> bool:
        """Whether one steps, and no closure of it runs a pass."""
        return self._began is not None and self._rec.micro_batch == self._inside

    def _made(self, optimizer: Any, error: BaseException | None) -> None:
        if error is None:
            self._steps.optimizer_made(optimizer)

    def _begins(
        self, optimizer: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            # The passes of a closure may make the gradients, or the step drop them.
            if not _closure(args, kwargs) or _has_gradients(optimizer):
                self._saw(optimizer)
            inner = _within_another_step()
            self._begun += 1
            self._steps.optimizer_begins(optimizer, inner=inner)
            if inner:
                return
            self._rec.beat(kinds.OPTIMIZER, phases.OPTIMIZER, UNKNOWN)
            start = self._rec.tick() if self._rec.on else 0
            self._inside = self._rec.micro_batch
            self._began = start, perf_counter_ns()
        except Exception as error:
            self._rec.guard.fail(error)

    def _ended(
        self, optimizer: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            if _closure(args, kwargs):
                self._saw(optimizer)
            if _within_another_step():
                return
            began, self._began = self._began, None
            if began is not None:
                self._steps.optimizer_ended(*began)
        except Exception as error:
            self._rec.guard.fail(error)

    def _scaler_begins(
        self, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, int]:
        return optimizer, self._begun

    def _scaler_ended(
        self, token: tuple[Any, int], error: BaseException | None
    ) -> None:
        optimizer, begun = token
        ours = isinstance(optimizer, torch.optim.Optimizer)
        if ours and error is None and begun == self._begun:
            self._steps.optimizer_skipped(optimizer)


def _first(*args: Any, **kwargs: Any) -> Any:
    return args[0]


def _closure(args: tuple[Any, ...], kwargs: Any) -> bool:
    """Whether a step was given a function that makes the gradients; the first argument
    is the optimizer.
    """
    return any(map(callable, args[1:])) or callable((kwargs or {}).get("closure"))


def _has_gradients(optimizer: Any) -> bool:
    with unasked():
        params = (p for group in optimizer.param_groups for p in group["params"])
        return any(p.grad is not None for p in params)


def _within_another_step() -> bool:
    """Whether the hook's optimizer step is part of another's: `super().step()`, or
    that of an optimizer inside an optimizer. An outer step that raised leaves no
    trace, since only what is running now is looked at.
    """
    step = sys._getframe(2)  # torch's wrapper of `step`, one code for all optimizers
    frame = step.f_back
    while frame is not None:
        if frame.f_code is step.f_code:
            return True
        frame = frame.f_back
    return False
