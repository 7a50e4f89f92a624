"""What `fully_shard` was called on, as far as it was seen, and what of it never ran.

A sharded module whose parts are called one by one never runs its own forward: no hook
tells of it, and each of its parts is a root of its own. FSDP2 refuses to run it later,
so once a part has run it is certain.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import nn

from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.fsdp2.unit_specs import original_class
from fsdpdoctor.schema import IdleParentSpec


class ShardedModules:
    """Those of the process that still are."""

    def __init__(self) -> None:
        self._all: list[weakref.ref[nn.Module]] = []
        # By their places: no parameter may be referred to, see `gradients_used`.
        self._ignored: list[tuple[weakref.ref[nn.Module], str]] = []

    def add(
        self, modules: nn.Module | Sequence[nn.Module], ignored: Iterable[Any] | None
    ) -> None:
        """What one call was given: several modules may make one unit, and some of their
        parameters may be left alone.
        """
        several = (modules,) if isinstance(modules, nn.Module) else modules
        self._all += [weakref.ref(module) for module in several]
        if ids := {id(param) for param in ignored or ()}:
            self._ignored += [
                (weakref.ref(inner), name)
                for module in several
                for inner in module.modules()
                for name, param in inner._parameters.items()
                if id(param) in ids
            ]

    def ignored_ids(self) -> set[int]:
        """Ids of the parameters that were to be left alone."""
        return {
            id(inner._parameters.get(name))
            for ref, name in self._ignored
            if (inner := ref()) is not None
        }

    def around(self, module: nn.Module) -> nn.Module:
        """The outermost sharded module that holds this one; itself where none does."""
        outer = module
        for other in self.alive():
            if any(inner is outer for inner in other.modules()):
                outer = other
        return outer

    def alive(self) -> Iterator[nn.Module]:
        """All of them, whether they have run or not."""
        return (m for ref in self._all if (m := ref()) is not None)

    def managed_ids(self, models: Iterable[nn.Module]) -> set[int]:
        """Ids of the parameters that they shard, and what in these models is sharded,
        whether it is in a unit that ran or not.
        """
        inside = (one for model in models for one in model.modules())
        return {
            id(param.sharded_param)
            for module in (*self.alive(), *inside)
            for group in internals.groups_of(_state(module))
            for param in group.fsdp_params
        }

    def idle(self, units: Units, models: Sequence[nn.Module]) -> list[IdleParentSpec]:
        """The outermost ones whose forward never ran, though parts of them have."""
        idle = list(self._idle())
        inside = {id(m) for one in idle for m in one.modules() if m is not one}
        names = {id(m): name for one in models for name, m in one.named_modules()}
        return [
            IdleParentSpec(
                fqn=names.get(id(one), ""),
                module_class=original_class(one),
                params=sum(
                    len(group.fsdp_params) for group in internals.groups_of(_state(one))
                ),
                units=tuple(_units_of(_roots_in(one), units)),
            )
            for one in idle
            if id(one) not in inside
        ]

    def _idle(self) -> Iterator[nn.Module]:
        for module in self.alive():
            state = _state(module)
            never = state is not None and state._is_root is None
            if never and any(True for _ in _roots_in(module)):
                yield module


def _state(module: Any) -> Any:
    get = getattr(type(module), "_get_fsdp_state", None)
    return None if get is None else get(module)


def _roots_in(module: nn.Module) -> Iterator[Any]:
    """The states of what ran by itself inside a module."""
    for inner in module.modules():
        state = _state(inner) if inner is not module else None
        if state is not None and state._is_root:
            yield state


def _units_of(states: Iterator[Any], units: Units) -> Iterator[int]:
    found = {
        units.of(group).index
        for state in states
        for one in internals.all_states(state)
        for group in internals.groups_of(one)
    }
    yield from sorted(found)
