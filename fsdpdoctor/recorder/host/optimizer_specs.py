"""The optimizers that have stepped: what each was, and which one replaced another."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from fsdpdoctor.recorder.patching import unasked
from fsdpdoctor.schema import OptimizerSpec


class _Taken(NamedTuple):
    """By which optimizer a parameter is stepped.

    Its owner tells whether it is still that parameter, since another may get its id; it
    is not referred to itself, see `gradients_used`.
    """

    owner: weakref.ref[Any]
    number: int


class OptimizersSeen:
    """Those of the process."""

    def __init__(self) -> None:
        self._specs: dict[int, OptimizerSpec] = {}  # in the order of their first steps
        self._taken: dict[int, _Taken] = {}  # by a parameter's id
        # By id: there may be one for each parameter, and each asks in every step.
        self._known: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self.count = 0
        """How many there were, those that were replaced among them."""

    def knows(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this one has stepped before."""
        known = self._known.get(id(optimizer))
        return known is not None and known() is optimizer

    def add(
        self,
        optimizer: torch.optim.Optimizer,
        owners: Mapping[int, object],
        gathered: Collection[int] = (),
    ) -> None:
        """One is about to step for the first time. `owners` has, by a parameter's id,
        the module or parameter group that holds it; `gathered` the ids of those that
        units gather into, whose gradients are reduced into other ones.

        It replaces those that have stepped parameters of its before.
        """
        self._known[id(optimizer)] = weakref.ref(optimizer)
        params = [p for group in optimizer.param_groups for p in group["params"]]
        with unasked():
            idle = [p for p in params if p.grad is None]
        self.count += 1
        for param in params:
            owner = owners.get(id(param))
            before = self._taken.get(id(param))
            if owner is None:
                continue
            if before is not None and before.owner() is owner:
                self._specs.pop(before.number, None)
            self._taken[id(param)] = _Taken(weakref.ref(owner), self.count)
        self._specs[self.count] = OptimizerSpec(
            optimizer_class=type(optimizer).__name__,
            params=len(params),
            dtensors=sum(hasattr(p, "placements") for p in params),
            # One outside all modules that has a gradient is the script's own.
            stale=sum(id(p) not in owners for p in idle) if owners else 0,
            without_grad=len(idle),
            gathered=sum(id(p) in gathered and p.requires_grad for p in idle),
            foreach=optimizer.defaults.get("foreach"),
            fused=optimizer.defaults.get("fused"),
        )

    def specs(self) -> tuple[OptimizerSpec, ...]:
        """What those are that have not been replaced."""
        return tuple(self._specs.values())

    def alive(self) -> Iterator[torch.optim.Optimizer]:
        """Those that still are, replaced or not."""
        return (o for ref in self._known.values() if (o := ref()) is not None)
