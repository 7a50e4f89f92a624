"""FSDP2's collectives, under the names by which FSDP2 finds them."""

from __future__ import annotations

from typing import Any

from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.all_gather_hooks import GatherHooks
from fsdpdoctor.recorder.fsdp2.hook_context import HookContext
from fsdpdoctor.recorder.fsdp2.reduce_hooks import ReductionHooks
from fsdpdoctor.recorder.patching import Wrap


class CollectiveHooks:
    """One recorded step's view of FSDP2's collectives."""

    def __init__(self, context: HookContext) -> None:
        self._names = context.names
        self._gathers = GatherHooks(context, context.units.live)
        self._reductions = ReductionHooks(context, context.units.live)

    def wrappers(self) -> dict[str, Wrap]:
        """What brackets the functions of `_fsdp_param_group`, by name."""
        names = self._names
        module = names.param_group_module
        made: dict[str, Wrap] = {
            "foreach_all_gather": self._gathers.all_gather,
            "foreach_all_gather_copy_out": self._gathers.copy_out,
            "foreach_reduce": self._reductions.reduce,
        }
        return {n: make for n, make in made.items() if names.may_wrap(module, n)}

    def dist(self, real: Any) -> internals.DistProxy:
        """`torch.distributed` for `_fsdp_collectives`."""
        calls = internals.dist_calls(
            self._names,
            self._gathers.call,
            self._reductions.scatter_call,
            self._reductions.all_reduce_call,
        )
        return internals.DistProxy(real, calls)
