"""Where steps and micro-batches begin and end.

[Note: Steps] A step ends when its last optimizer step ends: the last one before
the next root forward with gradients. What follows it (logging, evaluation, the
next batch's loading) belongs to the next step, so steps follow each other
without a gap. An optimizer that steps inside backward ends its step with that
backward. Where each optimizer of several has forwards of its own, each is a
step. `fsdpdoctor.step()` overrides all of this from its first call on.

A micro-batch is from a root forward with gradients to the end of the backward
that follows; root forwards in between (several roots, several forwards before
one backward) belong to the same. Forwards without gradients make none.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from fsdpdoctor.recorder.fsdp2 import flag_bits
from fsdpdoctor.recorder.fsdp2.internals import in_backward
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.storage.recording import BufferPosition, Recording
from fsdpdoctor.recorder.storage.sampling import Sampling
from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    Kind,
    Lane,
    Phase,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A step's edge, on both clocks."""

    host_ns: int
    mark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBounds:
    """A step that has ended."""

    step: int
    start: Moment
    end: Moment
    micro_batches: int
    tokens: int
    samples: int
    cost_ns: int
    complete: bool = True


class Sink(Protocol):
    """Who writes steps down, and switches between full and light hooks."""

    def turn(self, on: bool) -> None:
        """Keep rows from here on, or stop."""
        ...

    def step_recorded(self, bounds: StepBounds, rows: BufferPosition) -> None:
        """A step has ended whose rows are the first of the buffers."""
        ...

    def step_timed(self, bounds: StepBounds) -> None:
        """A step has ended that was not recorded."""
        ...

    def boundary(self) -> None:
        """A recorded step ends, perhaps: another optimizer may follow."""
        ...

    def step_began(self) -> None:
        """What follows belongs to the next step, which is recorded."""
        ...

    def pass_boundary(self, phase: Phase) -> None:
        """A root's forward or backward begins or ends."""
        ...

    def tree_known(self, root_state: Any) -> None:
        """A tree of units can be described."""
        ...

    def root_forward(self, module: Any) -> None:
        """A root's forward with gradients begins."""
        ...


_OF_NO_STEP = {Kind.COLLECTIVE, Kind.COLLECTIVE_WAIT, Kind.GC}


class Steps:
    """The state between optimizer steps; see [Note: Steps]."""

    def __init__(
        self, recording: Recording, units: Units, sampling: Sampling, sink: Sink
    ) -> None:
        self._rec = recording
        self._units = units
        self._sampling = sampling
        self._sink = sink
        self._start = self._now()
        self._boundary: Moment | None = None
        self._cut = BufferPosition(0, 0, 0)
        self._cost_ns = 0
        self._recorded = False
        self._manual = False
        self._stepped_in_backward = False
        self._backwards = 0  # final callbacks that are queued
        self._micro_batches = 0
        self._micro_batch_start = 0
        self._tokens = self._samples = UNKNOWN

    def begin(self) -> None:
        """The first step starts."""
        self._recorded = self._sampling.records(0)
        if self._recorded:
            self._sink.turn(True)
            self._rec.drop(self._rec.rows())  # of putting the hooks in place
        self._rec.clock.rebase()
        self._start = self._now()
        self._units.resume(self._start.mark)

    # What FSDP2, or another root, says

    def root_forward_begins(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A root's forward starts, with or without gradients."""
        grad = torch.is_grad_enabled()
        self._units.grad = grad
        rec = self._rec
        rec.in_forward = True
        if not grad:
            return
        if self._boundary is not None and not self._manual:
            self._end_step()
        if rec.micro_batch == UNKNOWN:
            rec.micro_batch = self._micro_batches
            self._micro_batches += 1
            self._micro_batch_start = perf_counter_ns()
            self._count_inputs(args, kwargs)
            rec.beat(Kind.MICRO_BATCH, Phase.FORWARD, UNKNOWN)
            self._sink.root_forward(module)
        if rec.on:
            self._sink.pass_boundary(Phase.FORWARD)

    def root_forward_ended(self) -> None:
        """A root's forward has ended."""
        self._rec.in_forward = False
        if self._rec.on:
            self._sink.pass_boundary(Phase.FORWARD)

    def pass_aborted(self) -> None:
        """An exception ended the micro-batch before."""
        self._rec.in_forward = False
        self._backwards = 0
        self.backward_ended(aborted=True)

    def backward_begins(self) -> None:
        """A tree's backward has queued its final callback."""
        self._backwards += 1

    def backward_ended(self, *, aborted: bool = False) -> None:
        """A final callback has run, or a backward without one is over."""
        self._backwards = max(0, self._backwards - 1)
        if self._backwards or self._rec.micro_batch == UNKNOWN:
            return
        rec = self._rec
        if rec.on:
            self._sink.pass_boundary(Phase.BACKWARD)
            rec.host_span(
                Kind.MICRO_BATCH,
                self._micro_batch_start,
                flags=flag_bits.ABORTED if aborted else 0,
            )
            self._units.forget_reductions()
        rec.micro_batch = UNKNOWN
        if self._stepped_in_backward:
            self._stepped_in_backward = False
            self._set_boundary()

    def plain_backward_ended(self, error: BaseException | None) -> None:
        """`torch.autograd.backward` has returned, whatever was in it."""
        if in_backward():
            return  # nested, as reentrant checkpointing does
        if error is not None or self._backwards == 0:
            self._backwards = 0
            self.backward_ended(aborted=error is not None)

    def tree_known(self, root_state: Any) -> None:
        """A tree of units can be described."""
        self._sink.tree_known(root_state)

    # What the optimizer says

    def optimizer_ended(self, start: int, start_ns: int) -> None:
        """An optimizer step has ended, which began at a mark and a host time."""
        rec = self._rec
        if rec.on:
            rec.spans.add(
                Kind.OPTIMIZER,
                Lane.COMPUTE,
                Phase.OPTIMIZER,
                0,
                rec.micro_batch,
                UNKNOWN,
                start,
                rec.mark(),
                issued=start_ns,
            )
        if in_backward():
            self._stepped_in_backward = True
            return
        if not self._manual:
            # A forward that no backward followed ends with its step.
            rec.micro_batch = UNKNOWN
            self._set_boundary()

    # What the user says

    def step(self) -> None:
        """The step ends here, whatever the optimizers do."""
        self._manual = True
        self._rec.micro_batch = UNKNOWN
        self._set_boundary()
        self._end_step()

    def finish(self) -> None:
        """The run ends: write what the last step has."""
        if self._boundary is not None:
            self._end_step()
        # A collection, or what ranks say to each other at the end, is no step.
        begun = self._rec.spans.kinds - _OF_NO_STEP
        if self._recorded and begun:
            self._units.abort_forwards()
            self._units.cut_windows(self._rec.mark())
            self._cut = self._rec.rows()
            self._cost_ns += self._rec.guard.take_cost()
            self._close(self._now(), complete=False)

    def _now(self) -> Moment:
        mark, host_ns = self._rec.mark(), perf_counter_ns()
        # No event while a CUDA graph is captured, and no device work either.
        return Moment(host_ns=host_ns, mark=host_ns if mark == NO_TIME else mark)

    def _set_boundary(self) -> None:
        rec = self._rec
        starts = not rec.on and self._sampling.records(rec.step + 1)
        # In every step, recorded or not: what drift is taken back in between makes
        # one step longer or shorter.
        rec.clock.rebase()
        now = self._now()
        self._boundary = now
        self._cost_ns += rec.guard.take_cost()
        if rec.on:
            self._units.cut_windows(now.mark)
            self._sink.boundary()
        self._cut = rec.rows()
        if rec.on:
            self._sink.step_began()
        self._units.first = True
        if starts:
            self._turn_on()

    def _turn_on(self) -> None:
        boundary = self._boundary
        assert boundary is not None
        self._sink.turn(True)
        self._units.resume(boundary.mark)
        self._units.first = True

    def _end_step(self) -> None:
        boundary = self._boundary
        assert boundary is not None
        self._close(boundary, complete=True)
        self._start, self._boundary = boundary, None
        self._cost_ns = 0
        self._micro_batches = 0
        self._tokens = self._samples = UNKNOWN
        rec = self._rec
        rec.step += 1
        self._recorded = rec.on and self._sampling.records(rec.step)
        if rec.on and not self._recorded:
            rec.drop(rec.rows())
            self._sink.turn(False)

    def _close(self, end: Moment, *, complete: bool) -> None:
        rec = self._rec
        entered = perf_counter_ns()
        bounds = StepBounds(
            step=rec.step,
            start=self._start,
            end=end,
            micro_batches=self._micro_batches or UNKNOWN,
            tokens=self._tokens,
            samples=self._samples,
            cost_ns=self._cost_ns,
            complete=complete,
        )
        if self._recorded:
            self._sink.step_recorded(bounds, self._cut)
            spent = perf_counter_ns() - entered
            rec.guard.cost_ns += spent
            duration = end.host_ns - self._start.host_ns
            self._sampling.learn(duration, self._cost_ns + spent)
        else:
            rec.drop(self._cut)
            self._sink.step_timed(bounds)

    def _count_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tokens are the elements of a two-dimensional integer input, samples its
        rows, or those of the first tensor.
        """
        tensors = [
            value
            for value in (kwargs.get("input_ids"), *args, *kwargs.values())
            if isinstance(value, torch.Tensor) and value.dim() > 0
        ]
        if not tensors:
            return
        self._samples = max(self._samples, 0) + int(tensors[0].shape[0])
        if tensors[0].dim() == 2 and tensors[0].dtype in (torch.int64, torch.int32):
            self._tokens = max(self._tokens, 0) + tensors[0].numel()
