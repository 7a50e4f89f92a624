"""What stays in place between recorded steps: counting, and the heartbeat.

Collectives are numbered in every step, so that a number means the same
collective on every rank, whichever steps a rank records. Everything here is on the
path of every step of a long run, so it calls as little as it can.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.param_group_hooks import PassListener
from fsdpdoctor.recorder.fsdp2.process_groups import Groups
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.patching import unseen
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.schema import Kind, Phase

# Plain integers: to look a member up in its class costs more than the rest.
_ALL_GATHER = int(Kind.ALL_GATHER)
_REDUCE_SCATTER = int(Kind.REDUCE_SCATTER)
_FORWARD = int(Phase.FORWARD)
_BACKWARD = int(Phase.BACKWARD)


class LightHooks:
    """An unrecorded step's view: who runs, and which collective is issued."""

    def __init__(
        self,
        recording: Recording,
        units: Units,
        groups: Groups,
        names: internals.TorchSymbols,
    ) -> None:
        self._rec = recording
        self._units = units
        self._groups = groups
        self._names = names

    def group_wrappers(self) -> dict[str, Any]:
        """The wrapped methods of FSDPParamGroup, by name."""
        owner = self._names.group_class
        made = {
            "pre_forward": (int(Kind.FORWARD), _FORWARD),
            "pre_backward": (int(Kind.BACKWARD), _BACKWARD),
        }
        return {
            name: self._beating(getattr(owner, name), kind, phase)
            for name, (kind, phase) in made.items()
            if hasattr(owner, name)
        }

    def state_wrappers(self, passes: PassListener) -> dict[str, Any]:
        """The wrapped methods of FSDPState: root forwards make steps."""
        owner = self._names.state_class
        if not hasattr(owner, "_root_pre_forward"):
            return {}
        original = owner._root_pre_forward
        rec, units = self._rec, self._units

        @unseen
        @functools.wraps(original)
        def root_pre_forward(state: Any, module: Any, args: Any, kwargs: Any) -> Any:
            running = state._state_ctx.iter_forward_root
            if running is not None and running is not state:
                return original(state, module, args, kwargs)  # every inner unit
            try:
                if not internals.in_backward():
                    passes.root_forward_begins(module, args, kwargs)
            except Exception as error:
                rec.guard.fail(error)
            result = original(state, module, args, kwargs)
            try:
                if not units.knows_tree(state):
                    passes.tree_known(internals.all_states(state)[0])
            except Exception as error:
                rec.guard.fail(error)
            return result

        root_pre_forward._torchdynamo_disable = True  # type: ignore[attr-defined]
        return {"_root_pre_forward": root_pre_forward}

    def function_wrappers(self) -> dict[str, Any]:
        """The wrapped functions of `_fsdp_param_group`, by name."""
        made = {
            "foreach_all_gather": self._gathering,
            "foreach_reduce": self._reducing,
        }
        module = self._names.param_group_module
        return {
            name: make(getattr(module, name))
            for name, make in made.items()
            if hasattr(module, name)
        }

    def dist(self, real: Any) -> internals.DistProxy:
        """`torch.distributed` for `_fsdp_collectives`: counts all-reduces."""
        return internals.DistProxy(real, {"all_reduce": self._all_reduce_call})

    def _beating(
        self, original: Callable[..., Any], kind: int, phase: int
    ) -> Callable[..., Any]:
        """What follows is the unit's own compute: its gather is done."""
        rec, unit_of = self._rec, self._units.of

        @unseen
        @functools.wraps(original)
        def beating(group: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(group, *args, **kwargs)
            try:
                rec.beat(kind, phase, unit_of(group).index)
            except Exception as error:
                rec.guard.fail(error)
            return result

        beating._torchdynamo_disable = True  # type: ignore[attr-defined]
        return beating

    def _gathering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        count, in_backward = self._count, internals.in_backward

        @unseen
        @functools.wraps(original)
        def gathering(*args: Any, **kwargs: Any) -> Any:
            phase = _BACKWARD if in_backward() else _FORWARD
            count(_ALL_GATHER, phase, args[0], args[1])
            return original(*args, **kwargs)

        return gathering

    def _reducing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        count = self._count

        @unseen
        @functools.wraps(original)
        def reducing(*args: Any, **kwargs: Any) -> Any:
            # One rank, or no shard group (replicated): nothing is scattered.
            if args[2] is not None and args[2].size() > 1:
                count(_REDUCE_SCATTER, _BACKWARD, args[0], args[2])
            return original(*args, **kwargs)

        return reducing

    def _count(self, kind: int, phase: int, params: Any, process_group: Any) -> None:
        rec = self._rec
        try:
            pg = self._groups.index(process_group)
            unit = self._units.index_of_params(params)
            rec.beat(kind, phase, unit, rec.new_seq(pg), pg)
        except Exception as error:
            rec.guard.fail(error)

    @unseen
    def _all_reduce_call(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            group = kwargs["group"] if "group" in kwargs else args[2]
            self._rec.new_seq(self._groups.index(group))
        except Exception as error:
            self._rec.guard.fail(error)
        return inner(*args, **kwargs)
