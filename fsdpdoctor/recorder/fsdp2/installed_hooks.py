"""Which hooks are in place: all of them in a recorded step, light ones between."""

from __future__ import annotations

from typing import Any, Protocol

from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.collective_hooks import CollectiveHooks
from fsdpdoctor.recorder.fsdp2.hook_context import HookContext
from fsdpdoctor.recorder.fsdp2.param_group_hooks import UnitHooks
from fsdpdoctor.recorder.fsdp2.state_hooks import PassListener, StateHooks
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.fsdp2.unsampled_hooks import LightHooks
from fsdpdoctor.recorder.patching import Function, HookSet
from fsdpdoctor.recorder.storage.recording import nothing_to_read
from fsdpdoctor.recorder.tape.hooks import TapedHooks


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
        # The same, by hooks that only write down that they ran.
        self._in_c, self._light_in_c = HookSet(), HookSet()
        # `dist` of FSDP2's module, full and light: each of its names is asked of a
        # stand-in then, which takes time, so it is there only where it is needed.
        self._full_dist = HookSet()
        self._light_dist = HookSet()
        names = context.names
        self._taped: TapedHooks | None = None  # until they are built
        self._is_taped = False
        self._named = None not in (names.all_gather_class, names.reduce_scatter_class)

    def build(self, unit_hooks: UnitHooks, steps: PassListener, host: HostSide) -> None:
        """Make the wrappers. None is in place yet."""
        rec, units, _, names = self._context
        host.sharding(names)
        states = StateHooks(rec, units, steps).wrappers(names)
        taped = self._taped = TapedHooks(self._context)
        collectives = CollectiveHooks(self._context)
        light = LightHooks(self._context)
        module = names.collectives_module
        full, light_ones = self._full, self._light
        full.add(names.state_class, states)
        full.add(names.group_class, unit_hooks.wrappers(names))
        full.add(names.param_group_module, collectives.wrappers())
        self._in_c = taped.full(states)
        self._light_in_c = taped.light(light, steps)
        if names.may_wrap(names.module_class, "unshard"):
            by_hand = host.manual_unshard(units)
            full.add(names.module_class, by_hand)
            self._in_c.add(names.module_class, by_hand)
        light_ones.add(names.state_class, light.state_wrappers(steps))
        light_ones.add(names.group_class, light.group_wrappers())
        light_ones.add(names.param_group_module, light.function_wrappers())
        self._full_dist.add(module, {"dist": collectives.dist})
        self._light_dist.add(module, {"dist": light.dist})

    def install(self, on: bool) -> None:
        """Put in place what a recorded step needs, or what is needed between."""
        self.undo()
        self._install(on)
        self._install_dist(on)

    @property
    def _may_be_taped(self) -> bool:
        return self._taped is not None and self._taped.usable

    def _install(self, on: bool) -> None:
        taped, rec = self._taped, self._context.recording
        rec.catch_up()  # what is counted there is counted
        rec.catch_up = nothing_to_read
        self._is_taped = self._may_be_taped
        if taped is None or not self._is_taped:
            (self._full if on else self._light).install()
            return
        taped.start_anew()
        rec.catch_up = taped.replay.catch_up
        (self._in_c if on else self._light_in_c).install()

    def tree_known(self, on: bool) -> None:
        """There are new units, whose gradients may be all-reduced, too; the first of
        them say which device it is.
        """
        if self._is_taped != self._may_be_taped:
            self.install(on)
            return
        self._full_dist.patches.undo()
        self._light_dist.patches.undo()
        self._install_dist(on)

    def _install_dist(self, on: bool) -> None:
        if self._context.units.replicate or (on and not self._named):
            (self._full_dist if on else self._light_dist).install()

    def unless_own(self, original: Function, live: Function) -> Function:
        """A method that FSDP2 calls, too, by way of `live` where somebody else does."""
        return live if self._taped is None else self._taped.unless_own(original, live)

    def tick(self) -> None:  # untraced: its own thread
        """The heartbeat is about to be written."""
        if self._taped is not None:
            self._taped.replay.tick()

    def catch_up_beside(self) -> None:
        """Read what hooks in C have written down, on whatever thread."""
        if self._taped is not None:
            self._taped.replay.catch_up_beside()

    def undo(self) -> None:
        """Take all of them out, as far as they are still ours."""
        every = (
            *(self._light_dist, self._full_dist),
            *(self._light, self._light_in_c, self._in_c, self._full),
        )
        for hooks in every:
            hooks.patches.undo()
