"""What stays in place between recorded steps: counting, and the heartbeat.

Collectives are numbered in every step, so that a number means the same
collective on every rank, whichever steps a rank records. Everything here is on the
path of every step of a long run, so it calls as little as it can.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fsdpdoctor.recorder import kinds, phases
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.hook_context import HookContext
from fsdpdoctor.recorder.fsdp2.state_hooks import PassListener
from fsdpdoctor.recorder.patching import Wrap, hide_frames, unseen
from fsdpdoctor.recorder.tape.worlds import World

# Plain integers: to look a member up in its class costs more than the rest.
_ALL_GATHER = int(kinds.ALL_GATHER)
_REDUCE_SCATTER = int(kinds.REDUCE_SCATTER)
_FORWARD = int(phases.FORWARD)
_BACKWARD = int(phases.BACKWARD)

BEATS = {
    "pre_forward": (int(kinds.FORWARD), _FORWARD),
    "pre_backward": (int(kinds.BACKWARD), _BACKWARD),
}
"""Methods of FSDPParamGroup after which a unit's own compute begins."""

COUNTED = {
    "foreach_all_gather": (_ALL_GATHER, 1),
    "foreach_reduce": (_REDUCE_SCATTER, 2),
}
"""Functions that issue a collective, with the place of its group in their arguments."""


class LightHooks:
    """An unrecorded step's view: who runs, and which collective is issued."""

    def __init__(self, context: HookContext) -> None:
        self._rec = context.recording
        self._units = context.units
        self._groups = context.groups
        self._names = context.names

    def group_wrappers(self) -> dict[str, Wrap]:
        """What wraps the methods of FSDPParamGroup, by name."""
        owner = self._names.group_class
        return {
            name: functools.partial(self._beating, kind=kind, phase=phase)
            for name, (kind, phase) in BEATS.items()
            if self._names.may_wrap(owner, name)
        }

    def state_wrappers(self, passes: PassListener) -> dict[str, Wrap]:
        """What wraps the methods of FSDPState: root forwards make steps."""
        names = self._names
        if not names.may_wrap(names.state_class, "_root_pre_forward"):
            return {}
        return {"_root_pre_forward": functools.partial(self._root, passes=passes)}

    def _root(
        self, original: Callable[..., Any], passes: PassListener
    ) -> Callable[..., Any]:
        rec, units = self._rec, self._units

        @unseen
        @functools.wraps(original)
        def root_pre_forward(state: Any, *given: Any, **named: Any) -> Any:
            context = getattr(state, "_state_ctx", None)
            running = getattr(context, "iter_forward_root", None)
            inner = running is not None and running is not state  # nearly every unit
            try:
                if not inner and not internals.in_backward():
                    module, args, kwargs = given
                    part = internals.is_part(state)
                    passes.root_forward_begins(
                        module, args, kwargs, id(context), part=part
                    )
            except Exception as error:
                rec.guard.fail(error)
            try:
                result = original(state, *given, **named)
            except BaseException as error:
                hide_frames(error)
                raise
            try:
                if not inner and not units.knows_tree(state):
                    passes.tree_known(internals.all_states(state)[0])
            except Exception as error:
                rec.guard.fail(error)
            return result

        root_pre_forward._torchdynamo_disable = True  # type: ignore[attr-defined]
        return root_pre_forward

    def function_wrappers(self) -> dict[str, Wrap]:
        """What wraps the functions of `_fsdp_param_group`, by name."""
        made: dict[str, Wrap] = {
            name: functools.partial(self._counting, kind=kind, group_at=at)
            for name, (kind, at) in COUNTED.items()
        }
        names = self._names
        module = names.param_group_module
        return {n: make for n, make in made.items() if names.may_wrap(module, n)}

    def dist(self, real: Any) -> internals.DistProxy:
        """`torch.distributed` for `_fsdp_collectives`: counts all-reduces."""
        return internals.DistProxy(real, {"all_reduce": self._all_reduce_call})

    def _beating(
        self, original: Callable[..., Any], kind: int, phase: int
    ) -> Callable[..., Any]:
        """What follows is the unit's own compute: its gather is done."""
        guard, beat, unit_of = self._rec.guard, self._rec.beat, self._units.of

        @unseen
        @functools.wraps(original)
        def beating(group: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(group, *args, **kwargs)
            except BaseException as error:
                hide_frames(error)
                raise
            try:
                beat(kind, phase, unit_of(group).index)
            except Exception as error:
                guard.fail(error)
            return result

        beating._torchdynamo_disable = True  # type: ignore[attr-defined]
        return beating

    def _counting(
        self, original: Callable[..., Any], kind: int, group_at: int
    ) -> Callable[..., Any]:
        count = self._count

        @unseen
        @functools.wraps(original)
        def counting(*args: Any, **kwargs: Any) -> Any:
            count(kind, args, group_at)
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                hide_frames(error)
                raise

        return counting

    def _count(self, kind: int, args: Any, group_at: int) -> None:
        """A collective of the parameters and the group among a call's arguments."""
        rec = self._rec
        try:
            process_group = args[group_at]
            if kind == _REDUCE_SCATTER and (
                process_group is None or process_group.size() == 1
            ):
                return  # one rank, or no shard group (replicated)
            pg = self._groups.index(process_group)
            unit = self._units.index_of_params(args[0])
            self.counted(self._units.live, kind, unit, pg)
        except Exception as error:
            rec.guard.fail(error)

    def counted(self, world: World, kind: int, unit: int, pg: int) -> None:
        """A collective is issued."""
        backward = kind == _REDUCE_SCATTER or world.in_backward()
        phase = _BACKWARD if backward else _FORWARD
        world.beat(kind, phase, unit, self._rec.new_seq(pg), pg)

    @unseen
    def _all_reduce_call(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            group = kwargs["group"] if "group" in kwargs else args[2]
            self._rec.new_seq(self._groups.index(group))
        except Exception as error:
            self._rec.guard.fail(error)
        return inner(*args, **kwargs)
