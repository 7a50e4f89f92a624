"""Where steps begin and end.

[Note: Steps] A step ends when its last optimizer step ends: the last one before
the next root forward with gradients. What follows it (logging, evaluation, the
next batch's loading) belongs to the next step, so steps follow each other
without a gap. An optimizer that steps inside backward ends its step with that
backward. Optimizers that take turns, each after passes of its own, make one step
together: it ends before one of them steps again, see `optimizer_turns`. One that a
gradient scaler leaves out was one. Where no optimizer of torch's steps, a backward
whose gradients were used ends the step, see `own_steps`.
`fsdpdoctor.step()` overrides all of this from its first call on.

So it may show late that a step had ended: what follows its last boundary is the next
one's by then, rows and micro-batches alike.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

import torch

from fsdpdoctor.recorder import flag_bits, kinds, lanes, phases
from fsdpdoctor.recorder.fsdp2.internals import in_backward, is_broken_off
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.steps.micro_batches import (
    NO_INPUTS,
    NO_TREE,
    Inputs,
    MicroBatches,
    Tree,
    inputs_of,
)
from fsdpdoctor.recorder.steps.optimizer_turns import OptimizerTurns
from fsdpdoctor.recorder.steps.own_steps import End, OwnSteps
from fsdpdoctor.recorder.steps.root_passes import RootPasses
from fsdpdoctor.recorder.steps.shape_passes import ShapePasses
from fsdpdoctor.recorder.steps.step_bounds import Moment, Sink, StepBounds
from fsdpdoctor.recorder.storage.recording import BufferPosition, Recording
from fsdpdoctor.recorder.storage.sampling import Sampling
from fsdpdoctor.schema import (
    COUNTER_GRADIENTS_TAKEN,
    NO_TIME,
    UNKNOWN,
)

OWN_OPTIMIZER = (
    "no optimizer of torch's was seen to step (one whose step is compiled is not "
    "seen): each step ends with the backward whose gradients were used; "
    "fsdpdoctor.step() says where it ends"
)
"""What a record says whose steps are told so."""


_OF_NO_STEP = {kinds.COLLECTIVE, kinds.COLLECTIVE_WAIT, kinds.GC}


class Steps:
    """The state between optimizer steps; see [Note: Steps]."""

    def __init__(
        self, recording: Recording, units: Units, sampling: Sampling, sink: Sink
    ) -> None:
        self._rec = recording
        self._units = units
        self._sampling = sampling
        self._sink = sink
        self._batches = MicroBatches()
        self._turns = OptimizerTurns()
        self._by_hand = OwnSteps()
        self._passes = RootPasses(recording)
        self._shapes = ShapePasses()
        self._start = self._now()
        self._boundary: Moment | None = None
        self._open = False  # whether more of the step may follow its boundary
        self._cut = BufferPosition(0, 0, 0)
        self._cost_ns = 0
        self._recorded = False
        self._manual = False
        self._stepped_in_backward = False
        self._ended_in_backward = False
        self._backwards = 0  # final callbacks that are queued
        self._broken = False  # FSDP2 waits for the end of a backward that broke off
        self._root: Any = None  # of the last forward with gradients

    def begin(self) -> None:
        """The first step starts."""
        self._recorded = self._sampling.records(0)
        if self._recorded:
            self._sink.turn(True)
            self._rec.drop(self._rec.rows())  # of putting the hooks in place
        self._rec.clock.rebase()
        self._start = self._now()
        self._units.resume(self._start.tick)

    # What FSDP2, or another root, says

    def root_forward_begins(
        self,
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tree: Tree = NO_TREE,
        *,
        part: bool = False,
    ) -> None:
        """A root's forward starts, with or without gradients, or a part's alone."""
        self._rec.catch_up()
        grad = torch.is_grad_enabled()
        self._units.grad = grad
        rec = self._rec
        rec.in_forward = True
        if grad and not self._shapes.forward(tree):
            inputs = NO_INPUTS
            if self._rec.on and not part:
                inputs = inputs_of(args, kwargs)
            self._pass_begins(module, inputs, tree, part=part)
        if rec.on:
            self._passes.begins(module, args, kwargs, grad=grad)
        if grad and rec.on:
            self._sink.pass_boundary(phases.FORWARD)

    def _pass_begins(
        self, module: Any, inputs: Inputs, tree: Tree, *, part: bool
    ) -> None:
        self._may_end_step()
        rec = self._rec
        first = rec.micro_batch == UNKNOWN
        now_ns = perf_counter_ns()
        if rec.on and self._batches.after_backward() and not self._units.accumulates():
            rec.counters.add(rec.names.id(COUNTER_GRADIENTS_TAKEN), now_ns, 1)
        rec.enter_pass(*self._batches.forward(tree, now_ns, inputs, part=part))
        if first:
            rec.beat(kinds.MICRO_BATCH, phases.FORWARD, UNKNOWN)
            self._sink.root_forward(module)
        if module is not None:
            self._root = weakref.ref(module)

    def root_forward_ended(self, unit: int = UNKNOWN) -> None:
        """A root's forward has ended, of a tree with this unit."""
        self._rec.catch_up()
        self._rec.in_forward = False
        if self._rec.on:
            self._passes.ended(unit)
            self._sink.pass_boundary(phases.FORWARD)

    def pass_aborted(self) -> None:
        """An exception ended the root's forward before, and with it its micro-batch."""
        self._rec.catch_up()
        self._rec.in_forward = False
        if not self._units.grad:
            return  # it was of none
        self._backwards = 0
        self.backward_ended(aborted=True)

    def backward_begins(self, tree: Tree = NO_TREE) -> None:
        """A tree's backward has queued its final callback."""
        self._rec.catch_up()
        self._backwards += 1
        if self._shapes.backward(tree):
            return
        self._rec.enter_pass(*self._batches.backward(tree, perf_counter_ns()))

    def backward_ended(self, *, aborted: bool = False) -> None:
        """A final callback has run, or a backward without one is over."""
        self._rec.catch_up()
        self._backwards = max(0, self._backwards - 1)
        if self._backwards or not self._batches.waiting():
            return
        rec = self._rec
        self._batches.backward_ended(perf_counter_ns(), aborted=aborted)
        if rec.on:
            self._sink.pass_boundary(phases.BACKWARD)
            self._units.forget_reductions()
        rec.leave_pass()
        if self._stepped_in_backward:
            self._stepped_in_backward = False
            self._set_boundary()
            self._ended_in_backward = True
        elif not aborted and self._no_optimizer:
            self._gradients_left()

    def plain_backward_ended(self, error: BaseException | None) -> None:
        """`torch.autograd.backward` has returned, whatever was in it."""
        if in_backward():
            return  # nested, as reentrant checkpointing does
        self._rec.catch_up()
        if error is not None or self._backwards == 0:
            self._backwards = 0
            self.backward_ended(aborted=error is not None)
        # The one that broke off is told from those after it.
        self._broken = error is None and is_broken_off(self._units.backward_state())
        if self._broken and self._units.broken_off_step == UNKNOWN:
            self._units.broken_off_step = self._rec.step

    # What gradients say

    @property
    def own(self) -> bool:
        """Whether steps end with backward: an optimizer of the script's own steps."""
        return self._by_hand.sure

    @property
    def _no_optimizer(self) -> bool:
        return not self._manual and not self._turns.any_stepped

    def _gradients_left(self) -> None:
        """A backward has ended in a process in which no optimizer has stepped yet."""
        self._gradients_may_be_used()
        self._by_hand.remember(self._params())
        if self.own:
            self._set_boundary()
        else:
            self._by_hand.may_end(
                End(self._now(), self._rec.rows(), self._batches.last)
            )

    def _gradients_may_be_used(self) -> None:
        """Those of the backward before: then it has ended its step."""
        if not self._by_hand.used(self._params()):
            return
        if not self.own:
            if self._turns.others_may_follow() and self._by_hand.may_wait:
                return  # weights are moved within a step, or gradients are scaled
            self._steps_were_own()
        elif self._boundary is not None:
            self._end_step()

    def _steps_were_own(self) -> None:
        """Steps have ended wherever gradients were used."""
        before = BufferPosition(0, 0, 0)
        for end in self._by_hand.settle():
            self._boundary, self._cut = end.moment, end.rows.after(before)
            before = end.rows
            self._batches.settle(end.last)
            self._end_step()

    def _params(self) -> Iterator[Any]:
        """Of the model that was trained last."""
        if self._units.all:
            return self._units.sharded_params()
        module = None if self._root is None else self._root()
        return iter(()) if module is None else module.parameters()

    def tree_known(self, root_state: Any) -> None:
        """A tree of units can be described."""
        self._sink.tree_known(root_state)

    # What the optimizer says

    def optimizer_made(self, optimizer: Any) -> None:
        """One was made: it may have its turn in every step."""
        self._turns.made(optimizer)

    def optimizer_begins(self, optimizer: Any, *, inner: bool) -> None:
        """One is about to step; as a part of another's step where it is inner."""
        self._rec.catch_up()
        self._by_hand.stepped()
        # No forward is seen of a model whose backward broke off.
        self._open |= self._broken and self._boundary is not None
        if self._open and not inner and not in_backward():
            if self._turns.begins_anew(optimizer):
                self._end_step()
            self._open = False
        self._turns.steps(optimizer, inner=inner)

    def optimizer_ended(self, start: int, start_ns: int) -> None:
        """An optimizer step has ended, which began at a tick and a host time."""
        self._rec.catch_up()
        rec = self._rec
        self._turns.ended()
        if rec.on:
            rec.spans.add(
                kinds.OPTIMIZER,
                lanes.COMPUTE,
                phases.OPTIMIZER,
                0,
                rec.micro_batch,
                UNKNOWN,
                start,
                rec.tick(),
                issued=start_ns,
            )
        if in_backward():
            self._stepped_in_backward = True
            return
        self._turn_ended()

    def optimizer_skipped(self, optimizer: Any) -> None:
        """Its turn came, and a scaler left it out: gradients had overflowed."""
        self.optimizer_begins(optimizer, inner=False)
        self._turns.ended()
        self._turn_ended()

    def _turn_ended(self) -> None:
        if not self._manual:
            # A forward that no backward followed ends with its step.
            self._rec.leave_pass()
            self._set_boundary()

    def _may_end_step(self) -> None:
        """A pass with gradients begins: the step before may be over."""
        if self._no_optimizer:
            self._gradients_may_be_used()
        elif self._boundary is not None and not self._manual:
            self._open = self._turns.others_may_follow() and not self._ended_in_backward
            if not self._open:
                self._end_step()

    # What the user says

    def step(self) -> None:
        """The step ends here, whatever the optimizers do."""
        self._rec.catch_up()
        self._manual = True
        self._rec.leave_pass()
        self._set_boundary()
        self._end_step()

    def finish(self) -> None:
        """The run ends: write what the last step has."""
        self._rec.catch_up()
        if self._no_optimizer and self._by_hand.ended(self._params()):
            self._steps_were_own()
        if self._boundary is not None:
            self._end_step()
        # A collection, or what ranks say to each other at the end, is no step.
        begun = self._rec.spans.kinds - _OF_NO_STEP
        if self._recorded and begun:
            self._units.abort_forwards(self._units.live)
            self._settle()
            self._units.cut_windows(self._rec.tick())
            self._cut = self._rec.rows()
            self._cost_ns += self._rec.guard.take_cost()
            self._close(self._now(), complete=False)

    def _now(self) -> Moment:
        tick, host_ns = self._rec.tick(), perf_counter_ns()
        # No event while a CUDA graph is captured, and no device work either.
        return Moment(host_ns=host_ns, tick=host_ns if tick == NO_TIME else tick)

    def _set_boundary(self) -> None:
        rec = self._rec
        starts = not rec.on and self._sampling.records(rec.step + 1)
        # In every step, recorded or not: what drift is taken back in between makes
        # one step longer or shorter.
        rec.clock.rebase()
        # Before the edge is taken: what they make may bring on a collection.
        self._settle()
        if rec.on:
            self._sink.step_ends()
        now = self._now()
        self._boundary, self._ended_in_backward = now, False
        self._cost_ns += rec.guard.take_cost()
        if rec.on:
            self._units.cut_windows(now.tick)
            self._sink.boundary()
        self._cut = rec.rows()
        if rec.on:
            self._sink.step_began()
        self._units.first = True
        if starts:
            self._turn_on()

    def _settle(self) -> None:
        """Give passes their micro-batches, and mark those that have ended."""
        rec = self._rec
        for marker in self._batches.settle():
            if rec.on:
                rec.spans.add(
                    kinds.MICRO_BATCH,
                    lanes.HOST,
                    phases.OTHER,
                    flag_bits.ABORTED if marker.aborted else 0,
                    marker.number,
                    UNKNOWN,
                    marker.start_ns,
                    marker.end_ns,
                )

    def _turn_on(self) -> None:
        boundary = self._boundary
        assert boundary is not None
        self._sink.turn(True)
        self._units.resume(boundary.tick)
        self._units.first = True

    def _end_step(self) -> None:
        boundary = self._boundary
        assert boundary is not None
        self._close(boundary, complete=True)
        self._start, self._boundary = boundary, None
        self._open = False
        self._cost_ns = 0
        self._batches.step_ended()
        self._turns.step_ended()
        rec = self._rec
        rec.next_step()
        self._recorded = rec.on and self._sampling.records(rec.step)
        if rec.on and not self._recorded:
            rec.drop(rec.rows())
            self._sink.turn(False)

    def _close(self, end: Moment, *, complete: bool) -> None:
        rec, batches = self._rec, self._batches
        entered = perf_counter_ns()
        bounds = StepBounds(
            step=rec.step,
            start=self._start,
            end=end,
            micro_batches=batches.count or UNKNOWN,
            tokens=batches.inputs.tokens,
            samples=batches.inputs.samples,
            cost_ns=self._cost_ns,
            complete=complete,
        )
        if self._recorded:
            self._sink.step_recorded(bounds, self._cut, batches.of_pass())
            spent = perf_counter_ns() - entered
            rec.guard.cost_ns += spent
            duration = end.host_ns - self._start.host_ns
            self._sampling.learn(duration, self._cost_ns + spent)
        else:
            rec.drop(self._cut)
            self._sink.step_timed(bounds)
