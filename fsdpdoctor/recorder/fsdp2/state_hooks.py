"""FSDP2's per-module states: where root forwards and backwards begin and end."""

from __future__ import annotations

import functools
import weakref
from time import perf_counter_ns
from typing import Any, Protocol

from fsdpdoctor.recorder import kinds, phases
from fsdpdoctor.recorder.brackets import PASS_BY, bracket, bracketing, compiling_check
from fsdpdoctor.recorder.forward_frames import forwards_running
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.patching import Function, Wrap, hide_frames, unseen
from fsdpdoctor.recorder.storage.recording import Recording


class PassListener(Protocol):
    """Who is told of root forwards and of the end of backwards."""

    def root_forward_begins(
        self,
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tree: int,
        *,
        part: bool,
    ) -> None:
        """A root's forward starts, or that of a part of a tree which is called by
        itself. Not called for recomputation.
        """
        ...

    def root_forward_ended(self, unit: int) -> None:
        """It has ended, of a tree with this unit."""
        ...

    def pass_aborted(self) -> None:
        """An exception ended the forward before."""
        ...

    def backward_begins(self, tree: int) -> None:
        """A tree's pre-backward queued its final callback."""
        ...

    def backward_ended(self) -> None:
        """That final callback has run."""
        ...

    def tree_known(self, root_state: Any) -> None:
        """A tree is initialised, and its units can be described."""
        ...


class StateHooks:
    """FSDP2's per-module states: root forwards, ends of backwards, new trees."""

    def __init__(
        self, recording: Recording, units: Units, passes: PassListener
    ) -> None:
        self._rec = recording
        self._units = units
        self._passes = passes
        self._announced = False  # the root's forward that is about to cast its inputs
        # States of roots whose forward runs, with the step in which it began.
        self._running: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def wrappers(self, names: internals.TorchSymbols) -> dict[str, Wrap]:
        """What brackets the methods of FSDPState, by name."""
        guard = self._rec.guard
        made = {
            "_root_pre_forward": self._root,
            "_register_pre_backward_hook": bracketing(
                guard, self._root_ends, self._forward_ended
            ),
            "_register_root_post_backward_final_callback": bracketing(
                guard, self._backward_begins, self._backward_begun
            ),
            "_root_post_backward_final_callback": bracketing(
                guard, self._callback_begins, self._callback_ended
            ),
            "_cast_forward_inputs": bracketing(guard, self._casts),
        }
        may_wrap, owner = names.may_wrap, names.state_class
        return {name: make for name, make in made.items() if may_wrap(owner, name)}

    def _root(self, original: Function) -> Function:
        units, guard, is_compiling = self._units, self._rec.guard, compiling_check()
        around = bracket(original, guard, self._root_begins, self._root_begun)

        @unseen
        @functools.wraps(original)
        def root_pre_forward(state: Any, *given: Any, **named: Any) -> Any:
            context = getattr(state, "_state_ctx", None)
            running = getattr(context, "iter_forward_root", None)
            if running is None or running is state or is_compiling():
                return around(state, *given, **named)
            units.forward_state = weakref.ref(state)
            try:
                return original(state, *given, **named)  # every inner unit
            except BaseException as error:
                hide_frames(error)
                raise

        return root_pre_forward

    def _root_ends(self, state: Any, *args: Any, **kwargs: Any) -> Any:
        self._rec.catch_up()
        return state if state._state_ctx.iter_forward_root is state else PASS_BY

    def _root_begins(self, state: Any, module: Any, args: Any, kwargs: Any) -> Any:
        self._rec.catch_up()
        self._units.forward_state = weakref.ref(state)
        if not internals.in_backward():
            part = internals.is_part(state)
            if not part and self._left_open(state) and forwards_running(module) < 2:
                # Its last forward never ended: an exception did.
                self._units.root_forward_broke_off(self._units.live, state)
                self._passes.pass_aborted()
            tree = id(state._state_ctx)
            self._passes.root_forward_begins(module, args, kwargs, tree, part=part)
            self._running[state] = self._rec.step
        return state

    def _left_open(self, state: Any) -> bool:
        return (
            state._state_ctx.iter_forward_root is state
            or self._units.in_forward(state)
            or self._running.get(state) == self._rec.step  # and not of an earlier
        )

    def _root_begun(self, state: Any, error: BaseException | None) -> None:
        self._announced = error is None
        if error is None and not self._units.knows_tree(state):
            self._passes.tree_known(internals.all_states(state)[0])

    def _forward_ended(self, state: Any, error: BaseException | None) -> None:
        if state._state_ctx.iter_forward_root is state and not internals.in_backward():
            self._running.pop(state, None)
            self._passes.root_forward_ended(self._units.unit_of_tree(state))

    def _backward_begins(self, state: Any) -> Any:
        self._rec.catch_up()
        self._units.backward_state = weakref.ref(state)
        queued = state._state_ctx.post_backward_final_callback_queued
        return PASS_BY if queued else state

    def _backward_begun(self, state: Any, error: BaseException | None) -> None:
        if state._state_ctx.post_backward_final_callback_queued:
            self._passes.backward_begins(id(state._state_ctx))

    def _callback_begins(self, state: Any) -> Any:
        self._rec.catch_up()
        return state, perf_counter_ns()

    def _callback_ended(self, token: Any, error: BaseException | None) -> None:
        self._rec.catch_up()  # with what the callback itself did
        state, start_ns = token
        unit = self._units.first_of(state)
        if self._rec.on:
            self._rec.host_span(
                kinds.HOOK,
                start_ns,
                phases.BACKWARD,
                unit,
                name="root_post_backward_callback",
            )
        self._passes.backward_ended()

    def _casts(self, state: Any, *args: Any, **kwargs: Any) -> None:
        self._rec.catch_up()
        # A forward while its own backward is under way: recomputation, which
        # leaves the unit's unshard to the pre-backward hook.
        # After a backward that an exception broke off states stay as they were.
        backward = internals.training_state(state) == "PRE_BACKWARD"
        if backward and internals.in_backward():
            self._units.recomputed(state)
        if state._state_ctx.iter_forward_root is state:
            announced, self._announced = self._announced, False
            if not announced and not backward:
                self._unannounced(state, args, kwargs)

    def _unannounced(self, state: Any, given: Any, named: Any) -> None:
        """A root's forward begins, and FSDP2 takes it for the one before, which an
        exception ended, still: it is told of no root's forward then.
        """
        modules = state._modules  # of several, each has a forward
        if len(modules) == 1 and forwards_running(modules[0]) < 2 and not named:
            self._root_begins(state, modules[0], *given)
