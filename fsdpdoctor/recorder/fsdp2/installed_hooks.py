"""Which hooks are in place: all of them in a recorded step, light ones between."""

from __future__ import annotations

from typing import Any, Protocol

from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.collective_hooks import CollectiveHooks
from fsdpdoctor.recorder.fsdp2.hook_context import HookContext
from fsdpdoctor.recorder.fsdp2.param_group_hooks import (
    PassListener,
    StateHooks,
    UnitHooks,
)
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.fsdp2.unsampled_hooks import LightHooks
from fsdpdoctor.recorder.patching import HookSet


class HostSide(Protocol):
    """What the host's hooks see of FSDP2's own functions."""

    def sharding(self, names: internals.TorchSymbols) -> None:
        """See what is sharded, and which parameters are left out."""

    def manual_unshard(self, units: Units) -> dict[str, Any]:
        """See the user's own unshards."""


class FsdpHooks:
    """The wrappers of FSDP2's methods, swapped where recording turns on or off."""

    def __init__(self, context: HookContext) -> None:
        self._context = context
        self._full = HookSet()
        self._light = HookSet()
        self._all_reduces = HookSet()  # light, with HSDP

    def build(self, unit_hooks: UnitHooks, steps: PassListener, host: HostSide) -> None:
        """Make the wrappers. None is in place yet."""
        rec, units, _, names = self._context
        host.sharding(names)
        states = StateHooks(rec, units, steps).wrappers(names)
        collectives = CollectiveHooks(self._context)
        light = LightHooks(self._context)
        module = names.collectives_module
        full, light_ones = self._full, self._light
        full.add(names.state_class, states)
        full.add(names.group_class, unit_hooks.wrappers(names))
        full.add(names.param_group_module, collectives.wrappers())
        if names.may_wrap(names.module_class, "unshard"):
            full.add(names.module_class, host.manual_unshard(units))
        full.add(module, {"dist": collectives.dist})
        light_ones.add(names.state_class, light.state_wrappers(steps))
        light_ones.add(names.group_class, light.group_wrappers())
        light_ones.add(names.param_group_module, light.function_wrappers())
        self._all_reduces.add(module, {"dist": light.dist})

    def install(self, on: bool) -> None:
        """Put in place what a recorded step needs, or what is needed between."""
        self.undo()
        if on:
            self._full.install()
            return
        self._light.install()
        if self._context.units.replicate:
            self._all_reduces.install()

    def undo(self) -> None:
        """Take all of them out, as far as they are still ours."""
        for hooks in (self._all_reduces, self._light, self._full):
            hooks.patches.undo()
