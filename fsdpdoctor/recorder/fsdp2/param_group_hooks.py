"""FSDP2's hooks and collectives, turned into spans.

`internals` knows where things are in torch, `units` what is remembered of a unit
between two hooks, `collectives` brackets the collectives; this module says what
each hook of a unit means. A recorded step has all of it installed; between
recorded steps only `unsampled_hooks.LightHooks` is, which counts.
"""

from __future__ import annotations

import functools
from typing import Any

from fsdpdoctor.recorder import flag_bits, kinds, lanes, phases
from fsdpdoctor.recorder.brackets import PASS_BY, bracketing, compiling_check
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.fsdp2.unit_state import Unit, Window
from fsdpdoctor.recorder.patching import Function, Wrap, hide_frames, unseen
from fsdpdoctor.recorder.storage.memory_samples import Memory
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.recorder.tape.worlds import World
from fsdpdoctor.schema import NO_TIME, UNKNOWN

_PHASE_OF_STATE = {"FORWARD": phases.FORWARD, "POST_BACKWARD": phases.BACKWARD}
"""In which a unit is resharded; at any other time the user does it."""

HOOK_NAMES = ("pre_forward", "post_forward", "pre_backward", "post_backward")
"""What spans of hooks are named."""


class UnitHooks:
    """One recorded step's view of FSDP2's parameter groups."""

    def __init__(
        self, recording: Recording, units: Units, memory: Memory, world: World
    ) -> None:
        self._rec = recording
        self._world = world
        self._units = units
        self.memory = memory

    def handlers(
        self, names: internals.TorchSymbols
    ) -> dict[str, tuple[Function, ...]]:
        """What each method of FSDPParamGroup begins with, and what it ends with."""
        pairs: dict[str, tuple[Function, ...]] = {
            "unshard": (self._unshard_begins, self._unshard_ended),
            "wait_for_unshard": (self._wait_begins, self._wait_ended),
            "pre_forward": (self._pre_forward_begins, self._pre_forward_ended),
            "post_forward": (self._post_forward_begins, self._hook_ended),
            "pre_backward": (self._pre_backward_begins, self._pre_backward_ended),
            "post_backward": (self._post_backward_begins, self._hook_ended),
            "finalize_backward": (self._finalize_begins, self._finalize_ended),
            "_wait_for_post_backward": (self._reduce_wait_begins,),
        }
        for name in internals.freeing_methods(names):
            pairs[name] = (self._reshard_begins, self._reshard_ended)
        return pairs

    def wrappers(self, names: internals.TorchSymbols) -> dict[str, Wrap]:
        """What brackets the methods of FSDPParamGroup, by name."""
        pairs = self.handlers(names)
        made = {n: bracketing(self._rec.guard, *pair) for n, pair in pairs.items()}
        made["_prefetch_unshard"] = self._prefetching
        may_wrap, owner = names.may_wrap, names.group_class
        return {name: make for name, make in made.items() if may_wrap(owner, name)}

    # Unshard and reshard

    def _unshard_begins(self, group: Any, *args: Any, **kwargs: Any) -> Any:
        if self._world.gathers(group) or self._world.is_unsharded(group):
            return PASS_BY  # FSDP2's own no-op
        unit = self._units.of(group)
        return unit, group, self._world.now_ns()

    def _unshard_ended(self, token: Any, error: BaseException | None) -> None:
        unit, _, start_ns = token
        op = unit.pending
        if op is None or op.issued_ns < start_ns:
            return  # not in backward, or one rank: no collective was issued
        self._rec.host_span(
            kinds.UNSHARD,
            start_ns,
            phase=op.phase,
            unit=unit.index,
            flags=op.flags | (flag_bits.ABORTED if error else 0),
            op=op.number,
            end_ns=self._world.now_ns(),
        )

    def _wait_begins(self, group: Any) -> Any:
        if not self._world.gathers(group):
            return PASS_BY
        return self._units.of(group), group

    def _wait_ended(self, token: Any, error: BaseException | None) -> None:
        unit, group = token
        op, unit.pending = unit.pending, None
        copied, unit.copied_out = unit.copied_out, NO_TIME
        if error is not None or not self._world.is_unsharded(group):
            return
        rec = self._rec
        unit.bytes = unit.bytes or self._world.unsharded_bytes(group)
        rec.live_bytes += unit.bytes
        phase = op.phase if op else self._units.phase_now(self._world, group)
        unit.window = Window(
            op=op.number if op else rec.new_op(),
            phase=phase,
            flags=op.flags if op else 0,
            micro_batch=op.micro_batch if op else rec.micro_batch,
            start=self._world.tick() if copied == NO_TIME else copied,
        )
        self.memory.sample(rec, unit.index, phase, self._world.now_ns())

    def _reshard_begins(self, group: Any, *args: Any) -> Any:
        world = self._world
        if not world.is_unsharded(group):
            return PASS_BY
        return self._units.of(group), group, world.tick(), world.now_ns()

    def _reshard_ended(self, token: Any, error: BaseException | None) -> None:
        unit, group, tick, start_ns = token
        if self._world.is_unsharded(group):
            return
        state = self._world.state(group)
        phase = _PHASE_OF_STATE.get(state, phases.OTHER)
        rec = self._rec
        op = unit.window.op if unit.window else UNKNOWN
        end_ns = self._world.now_ns()
        rec.host_span(kinds.RESHARD, start_ns, phase, unit.index, 0, op, end_ns=end_ns)
        self._units.close_window(unit, tick)
        self.memory.sample(rec, unit.index, phase, self._world.now_ns())

    # Forward

    def _pre_forward_begins(self, group: Any, *args: Any, **kwargs: Any) -> Any:
        unit = self._units.of(group)
        entering = self._world.state(group) != "FORWARD"
        if unit.forward is not None and (entering or self._world.one_module(group)):
            # Its post-forward never came: an exception ended that pass.
            self._units.abort_forwards(self._world)
            entering = True
        self._units.hook = unit
        return unit, entering, self._world.now_ns()

    def _pre_forward_ended(self, token: Any, error: BaseException | None) -> None:
        unit, entering, start_ns = token
        self._units.hook = None
        rec = self._rec
        phase, flags = self._units.forward_phase(self._world)
        rec.host_span(
            kinds.HOOK,
            start_ns,
            phase,
            unit.index,
            flags,
            name="pre_forward",
            end_ns=self._world.now_ns(),
        )
        if not entering or error is not None:
            return
        self._units.began(unit, phase)
        unit.checkpointed |= phase == phases.BACKWARD
        self._world.beat(kinds.FORWARD, phase, unit.index)
        unit.forward = self._world.tick()
        unit.forward_flags = flags

    def _post_forward_begins(self, group: Any, *args: Any, **kwargs: Any) -> Any:
        unit = self._units.of(group)
        phase, flags = self._units.forward_phase(self._world)
        if unit.forward is not None:
            # Without a module it is the root's forward that completes a partial
            # group: the unit's own forward ended some time before.
            partial = self._world.without_module(args)
            self._rec.spans.add(
                kinds.FORWARD,
                lanes.COMPUTE,
                phase,
                unit.forward_flags | (flag_bits.END_ESTIMATED if partial else 0),
                self._rec.micro_batch,
                unit.index,
                unit.forward,
                self._world.tick(),
            )
            unit.forward = None
            self._units.finished_forward(unit)
        return unit, "post_forward", phase, flags, self._world.now_ns()

    def _hook_ended(self, token: Any, error: BaseException | None) -> None:
        unit, name, phase, flags, start_ns = token
        self._rec.host_span(
            kinds.HOOK,
            start_ns,
            phase,
            unit.index,
            flags,
            name=name,
            end_ns=self._world.now_ns(),
        )

    # Backward

    def _pre_backward_begins(self, group: Any, *args: Any, **kwargs: Any) -> Any:
        if self._world.state(group) == "PRE_BACKWARD":
            return PASS_BY  # FSDP2's own no-op: another output's gradient came first
        unit = self._units.of(group)
        self._units.hook = unit
        return unit, self._world.now_ns()

    def _pre_backward_ended(self, token: Any, error: BaseException | None) -> None:
        unit, start_ns = token
        self._units.hook = None
        rec = self._rec
        rec.host_span(
            kinds.HOOK,
            start_ns,
            phases.BACKWARD,
            unit.index,
            name="pre_backward",
            end_ns=self._world.now_ns(),
        )
        if error is not None:
            return
        self._units.began(unit, phases.BACKWARD)
        self._world.beat(kinds.BACKWARD, phases.BACKWARD, unit.index)
        unit.backward = self._world.tick()

    def _post_backward_begins(self, group: Any, *args: Any, **kwargs: Any) -> Any:
        unit = self._units.of(group)
        rec = self._rec
        if unit.backward is not None:
            rec.spans.add(
                kinds.BACKWARD,
                lanes.COMPUTE,
                phases.BACKWARD,
                0,
                rec.micro_batch,
                unit.index,
                unit.backward,
                self._world.tick(),
            )
            unit.backward = None
        unit.saw_flags(self._world.flags(group))
        if rec.clock.of_device:
            for state in internals.buffer_waits(group):
                self._bracket_wait(group, unit, (state.event,))
        return unit, "post_backward", phases.BACKWARD, 0, self._world.now_ns()

    def _finalize_begins(self, group: Any) -> Any:
        unit = self._units.of(group)
        if self._rec.clock.of_device:
            self._bracket_wait(group, unit, internals.final_events(group))
        if unit.pending is not None and self._world.gathers(group):
            return unit, unit.pending, self._world.tick()
        return PASS_BY

    def _finalize_ended(self, token: Any, error: BaseException | None) -> None:
        unit, op, waited_from = token
        unit.pending = None
        self._units.never_used(op, waited_from, self._world.tick())

    def _bracket_wait(self, group: Any, unit: Unit, events: tuple[Any, ...]) -> None:
        """Make the compute stream wait for reductions, between two ticks.

        FSDP2 makes the same waits right after, where they cost nothing.
        """
        stream = internals.current_stream(group)
        for event in events:
            if event is None:
                continue
            reduction = self._units.reduction_of(event)
            start = self._rec.tick(stream)
            self._rec.guard.user_call(stream.wait_event, event)
            self._units.waited(reduction, unit, start, self._rec.tick(stream))

    def _reduce_wait_begins(self, group: Any) -> None:
        if not self._rec.clock.of_device:
            return
        states: tuple[Any, ...] = (group._post_reduce_event,)
        held = getattr(group, "_all_reduce_state", None)
        if held is not None:
            states = (*states, held.event)
        self._bracket_wait(group, self._units.of(group), states)

    # Prefetch

    def _prefetching(self, original: Function) -> Function:
        units, is_compiling = self._units, compiling_check()

        @unseen
        @functools.wraps(original)
        def prefetch_unshard(group: Any, pass_type: str, *more: Any) -> Any:
            if is_compiling():
                return original(group, pass_type, *more)
            forward = pass_type == "forward"
            units.prefetch = (
                flag_bits.FORWARD_PREFETCH if forward else flag_bits.BACKWARD_PREFETCH
            )
            try:
                return original(group, pass_type, *more)
            except BaseException as error:
                hide_frames(error)
                raise
            finally:
                units.prefetch = flag_bits.NONE

        return prefetch_unshard
