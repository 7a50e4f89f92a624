"""Hooks in C around FSDP2's functions.

What they write is read as [Note: The tape] says. They are there for parameters on a
CPU, whose clock is the host's: on a device a moment is an event, which has to be
recorded as it comes. Without a C compiler, in a torch whose collectives are no
arguments, or with gradients that are all-reduced, too, the live hooks are in place,
which mean the same.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from types import BuiltinFunctionType
from typing import Any

import torch

from fsdpdoctor.recorder import kinds
from fsdpdoctor.recorder.fsdp2.all_gather_hooks import GatherHooks, noted
from fsdpdoctor.recorder.fsdp2.hook_context import HookContext
from fsdpdoctor.recorder.fsdp2.param_group_hooks import HOOK_NAMES, UnitHooks
from fsdpdoctor.recorder.fsdp2.reduce_hooks import ReductionHooks
from fsdpdoctor.recorder.fsdp2.state_hooks import PassListener
from fsdpdoctor.recorder.fsdp2.unit_state import function_modes, tensor_bytes
from fsdpdoctor.recorder.fsdp2.unsampled_hooks import BEATS, COUNTED, LightHooks
from fsdpdoctor.recorder.patching import Function, HookSet, Wrap
from fsdpdoctor.recorder.storage.memory_samples import memory_of
from fsdpdoctor.recorder.tape import facts
from fsdpdoctor.recorder.tape.extension import extension
from fsdpdoctor.recorder.tape.replay import Replay
from fsdpdoctor.recorder.tape.worlds import STATES, Taped

_OF_DEVICE_ONLY = "_wait_for_post_backward"

_STATE_SHAPES = {
    "_root_pre_forward": facts.OF_ROOT_FORWARD,
    "_register_pre_backward_hook": facts.OF_ROOT_ENDS,
    "_register_root_post_backward_final_callback": facts.OF_BACKWARD,
    "_cast_forward_inputs": facts.OF_CAST,
}


class TapedHooks:
    """What there is in the place of the live hooks."""

    def __init__(self, context: HookContext) -> None:
        rec, units, groups, names = context
        self._context = context
        self._made = extension()
        self._codes = iter(range(0, 1 << 20, facts.ROWS))
        self.replay = Replay(Taped(rec), rec.guard)
        self._tape: Any = None
        training = getattr(names.param_group_module, "TrainingState", None)
        sharded = getattr(names.param_group_module, "ShardedState", None)
        members = tuple(getattr(training, state, None) for state in STATES[:4])
        unsharded = getattr(sharded, "UNSHARDED", None)
        known = None not in (
            *members,
            unsharded,
            names.all_gather_class,
            names.reduce_scatter_class,
        )
        if self._made is None or not known:
            return
        guard = rec.guard
        self._tape = self._made.Tape(
            unit_of=partial(guard.run, units.of),
            units_of_params=units.by_param,
            owner=units.owner,
            indices=groups.by_group,
            index_of=partial(guard.run, groups.index),
            graph_task=torch._C._current_graph_task_id,
            states=members,
            unsharded=unsharded,
            compiler=vars(torch.compiler),
            recording=rec,
            kept=partial(guard.run, noted),
            tensor=torch.Tensor,
            modes=function_modes,
            size_of=partial(guard.run, tensor_bytes),
        )
        self.replay.reads(self._tape)

    @property
    def usable(self) -> bool:
        """Whether these mean the same as the live ones, as things are now."""
        rec, units, _, _ = self._context
        return (
            self._tape is not None
            and bool(units.all)  # the device is known
            and not rec.clock.of_device
            and not units.replicate
            and isinstance(perf_counter_ns, BuiltinFunctionType)  # no virtual time
        )

    def start_anew(self) -> None:
        """They are put in place."""
        names = self._context.recording.names
        for name in HOOK_NAMES:  # now: who reads beside training adds none
            names.id(name)
        self.replay.start_anew()

    def full(self, states: dict[str, Wrap]) -> HookSet:
        """What is in place in a recorded step, with the live ones of states."""
        found = HookSet()
        if self._tape is None:
            return found
        rec, units, _, names = self._context
        replay = self.replay
        unit_hooks = UnitHooks(rec, units, memory_of(device=False), replay.world)
        codes = self._codes
        of_group: dict[str, Wrap] = {}
        for name, pair in unit_hooks.handlers(names).items():
            if name == _OF_DEVICE_ONLY or not names.may_wrap(names.group_class, name):
                continue
            code = next(codes)
            replay.bracket(code, *pair)
            of_group[name] = self._hook(
                code,
                facts.OF_GROUP,
                asks_modules=name == "pre_forward",
                asks_flags=name == "post_backward",
            )
        if names.may_wrap(names.group_class, "_prefetch_unshard"):
            code = next(codes)
            replay.prefetches(code, units)
            of_group["_prefetch_unshard"] = self._hook(code, facts.OF_PREFETCH)
        found.add(names.state_class, self._of_states(states))
        found.add(names.group_class, of_group)
        found.add(names.param_group_module, self._of_module())
        return found

    def light(self, hooks: LightHooks, steps: PassListener) -> HookSet:
        """What is in place between recorded steps."""
        found, names = HookSet(), self._context.names
        if self._tape is None:
            return found
        replay, codes = self.replay, self._codes
        live = hooks.state_wrappers(steps)
        of_states = {
            name: self._hook(next(codes), facts.OF_ROOT_ALONE, live=make)
            for name, make in live.items()
        }
        of_groups: dict[str, Wrap] = {}
        for name, (kind, phase) in BEATS.items():
            if names.may_wrap(names.group_class, name):
                code = next(codes)
                replay.begun(code, kind, phase)
                of_groups[name] = self._hook(code, facts.OF_GROUP)
        of_module: dict[str, Wrap] = {}
        for name, (kind, group_at) in COUNTED.items():
            if names.may_wrap(names.param_group_module, name):
                code = next(codes)
                replay.counts(code, kind, hooks)
                of_module[name] = self._hook(
                    code,
                    facts.OF_COUNT,
                    asks_size=kind == kinds.REDUCE_SCATTER,
                    group_at=group_at,
                )
        found.add(names.state_class, of_states)
        found.add(names.group_class, of_groups)
        found.add(names.param_group_module, of_module)
        return found

    def unless_own(self, original: Function, live: Function) -> Function:
        """A method of ProcessGroup, by way of `live` where FSDP2 does not call it."""
        if self._tape is None:
            return live
        hook: Function = self._made.Hook(self._tape, original, 0, facts.OF_METHOD, live)
        return hook

    def _of_states(self, states: dict[str, Wrap]) -> dict[str, Wrap]:
        forward, backward = next(self._codes), next(self._codes)
        self.replay.states(forward, backward, self._context.units)
        code_of = {"_root_pre_forward": forward}
        made = dict(states)
        for name, shape in _STATE_SHAPES.items():
            if name in made:
                code = code_of.get(name, backward)
                made[name] = self._hook(code, shape, live=made[name])
        return made

    def _of_module(self) -> dict[str, Wrap]:
        gather, copy_out, reduce = (next(self._codes) for _ in range(3))
        context, world = self._context, self.replay.world
        names = context.names
        self.replay.gathers(gather, copy_out, GatherHooks(context, world))
        self.replay.reductions(reduce, ReductionHooks(context, world))
        made = {
            "foreach_all_gather": self._hook(
                gather, facts.OF_GATHER, swapped=names.all_gather_class
            ),
            "foreach_all_gather_copy_out": self._hook(copy_out, facts.OF_COPY_OUT),
            "foreach_reduce": self._hook(
                reduce, facts.OF_REDUCE, swapped=names.reduce_scatter_class
            ),
        }
        module = names.param_group_module
        return {n: make for n, make in made.items() if names.may_wrap(module, n)}

    def _hook(
        self, code: int, shape: int, live: Wrap | None = None, **more: Any
    ) -> Wrap:
        hook, tape = self._made.Hook, self._tape

        def make(original: Any) -> Any:
            around = None if live is None else live(original)
            return hook(tape, original, code, shape, around, **more)

        return make
