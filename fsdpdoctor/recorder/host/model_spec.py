"""The whole model: what wraps it, what no unit manages, its blocks, optimizers."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import nn

from fsdpdoctor.recorder.forward_frames import outermost_module
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.process_groups import Groups
from fsdpdoctor.recorder.fsdp2.sharded_modules import ShardedModules
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.fsdp2.unit_specs import (
    Tree,
    dtype_name,
    original_class,
    without_compile,
)
from fsdpdoctor.recorder.host.optimizer_specs import OptimizersSeen
from fsdpdoctor.schema import (
    BlockSpec,
    ModelSpec,
    UnitSpec,
)

MAX_UNMANAGED_FQNS = 50
"""As `ModelSpec.unmanaged_fqns` promises."""


class ModelWatch:
    """Collects what `RankHeader.units` and `RankHeader.model` say."""

    def __init__(self, units: Units, groups: Groups) -> None:
        self._units = units
        self._tree = Tree(units, groups)
        self._outer: list[weakref.ref[nn.Module]] = []
        self._wrapper = "none"
        self._optimizers = OptimizersSeen()
        self._sharded = ShardedModules()
        self._autocast: str | None = None
        self._spec: ModelSpec | None = None
        self.checkpoint: str | None = None
        self.warnings: list[str] = []

    def add_root(self, root_state: Any) -> None:
        """A tree that FSDP2 has initialised. Called inside its forward."""
        self._wrapper = "fsdp2"
        outer = outermost_module()
        if outer is None:  # never `or`: a compiled module has a length, which raises
            outer = root_state._modules[0]
        outer = self._sharded.around(outer)
        # One without FSDP2 that ran before is no part of what is sharded: a trial run,
        # as one that comes later.
        self._outer = [weakref.ref(m) for m in self._models() if _holds_unit(m)]
        self._saw_outer(without_compile(outer))
        self._tree.add(root_state, outer)

    def saw_root(self, module: Any) -> bool:
        """A micro-batch begins with this module's forward: whether it is a new model
        without FSDP2.
        """
        for device in ("cuda", "cpu"):
            if self._autocast is None and torch.is_autocast_enabled(device):
                self._autocast = dtype_name(torch.get_autocast_dtype(device))
        if self._outer or not isinstance(module, nn.Module):
            return False
        outer = outermost_module()
        outer = without_compile(module if outer is None else outer)
        self._saw_outer(outer)
        return self.bare and not _holds_unit(outer)

    def saw_wrapper(self, wrapper: str) -> None:
        """A forward of a model without FSDP2 runs."""
        if self._wrapper == "none":
            self._wrapper = wrapper

    def saw_checkpoint(self, kind: str, function: Any) -> None:
        """A function is checkpointed now, perhaps inside a unit's forward."""
        self.checkpoint = kind
        unit = self._units.inside_forward()
        if unit is None or internals.in_backward():
            return
        module = getattr(function, "__self__", getattr(function, "func", function))
        if isinstance(module, nn.Module) and _holds_unit(module):
            return  # the units inside say themselves that they are recomputed
        unit.checkpointed = True

    def saw_sharded(self, modules: Any, ignored: Any) -> None:
        """`fully_shard` is called, and told to leave some parameters alone."""
        self._sharded.add(modules, ignored)

    def saw_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step: described the first time."""
        if not self._optimizers.knows(optimizer):
            self._optimizers.add(optimizer, self._owners(), self._gathered())

    def signature(self) -> object:
        """Equal as long as `units` and `spec` would say the same."""
        return (
            self._tree.signature(),
            self._units.broken_off_step,
            len(self._outer),
            self._optimizers.count,
            len(self._units.order),
            self._wrapper,
            self._autocast,
            self.checkpoint,
        )

    def units(self) -> tuple[UnitSpec, ...]:
        """All units, by index."""
        return self._tree.specs()

    def optimizers(self) -> Iterator[torch.optim.Optimizer]:
        """Those that have stepped, and still are."""
        return self._optimizers.alive()

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The model's buffers, by name."""
        return (named for m in self._models() for named in m.named_buffers())

    def unmanaged(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that no unit covers, where there are units."""
        if self._wrapper != "fsdp2":
            return []  # there is no unit to be outside of
        managed = self._managed().keys() | self._sharded.managed_ids(self._models())
        return [named for i, named in self._params().items() if i not in managed]

    def without_unit(self) -> list[Any]:
        """The parameters that no unit covers, whatever else wraps the model."""
        managed = self._managed()
        return [p for i, (_, p) in self._params().items() if i not in managed]

    def outside(self) -> list[tuple[str, nn.Parameter]]:
        """What ranks hold whole: what no unit covers; all of it, where nothing wraps
        the model, which is the script's to keep alike then.
        """
        return list(self._params().values()) if self.bare else self.unmanaged()

    @property
    def bare(self) -> bool:
        """Whether no wrapper has been seen."""
        return self._wrapper == "none"

    def _models(self) -> list[nn.Module]:
        return [m for ref in self._outer if (m := ref()) is not None]

    def _params(self) -> dict[int, tuple[str, nn.Parameter]]:
        """Each parameter once, with its name, by id."""
        return {id(p): (n, p) for m in self._models() for n, p in m.named_parameters()}

    def spec(self) -> ModelSpec | None:
        """The model, None before its first forward."""
        models = self._models()
        if not models:
            return self._spec
        named, left = self._params(), self.unmanaged()
        ignored = self._sharded.ignored_ids()
        self._spec = ModelSpec(
            wrapper=self._wrapper,
            model_class=original_class(models[0]),
            numel=sum(p.numel() for _, p in named.values()),
            trainable_numel=sum(
                p.numel() for _, p in named.values() if p.requires_grad
            ),
            unmanaged_fqns=tuple(n for n, _ in left[:MAX_UNMANAGED_FQNS]),
            unmanaged_params=len(left),
            unmanaged_numel=sum(p.numel() for _, p in left),
            unmanaged_bytes=sum(p.numel() * p.element_size() for _, p in left),
            unmanaged_trainable=sum(p.requires_grad for _, p in left),
            unmanaged_trainable_numel=sum(
                p.numel() for _, p in left if p.requires_grad
            ),
            ignored_params=sum(id(p) in ignored for _, p in left),
            blocks=tuple(
                replace(block, model=self._tree.model_of(m))
                for m in models
                for block in blocks_of(m)
            ),
            tied=tuple(names for m in models for names in tied_names(m)),
            checkpoint=self.checkpoint,
            autocast_dtype=self._autocast,
            optimizers=self._optimizers.specs(),
            forward_order=tuple(self._units.order),
            models=tuple(self._tree.model_classes),
            broken_off_step=self._units.broken_off_step,
            idle_parents=tuple(self._sharded.idle(self._units, models)),
        )
        return self._spec

    def _saw_outer(self, module: nn.Module) -> None:
        known = [m for ref in self._outer if (m := ref()) is not None]
        if not any(module is inner for m in known for inner in m.modules()):
            inside = {id(m) for m in module.modules()}
            self._outer = [r for r in self._outer if id(r()) not in inside]
            self._outer.append(weakref.ref(module))

    def _managed(self) -> dict[int, object]:
        """The group of each parameter that a unit shards, by the parameter's id."""
        return {
            id(param): group
            for unit in self._units.all
            if (group := unit.group()) is not None
            for fsdp_param in group.fsdp_params
            for param in (
                fsdp_param.sharded_param,
                getattr(fsdp_param, "_unsharded_param", None),
            )
        }

    def _gathered(self) -> set[int]:
        """The ids of what units gather into: no step of it reaches the model."""
        return {
            id(full)
            for unit in self._units.all
            if (group := unit.group()) is not None
            for fsdp_param in group.fsdp_params
            if (full := getattr(fsdp_param, "_unsharded_param", None)) is not None
        }

    def _owners(self) -> dict[int, object]:
        """What holds each parameter, by the parameter's id; nothing without a model."""
        models = self._models()
        if not models:
            return {}
        inside: dict[int, object] = {
            id(param): inner
            for module in (*models, *self._sharded.alive())
            for inner in module.modules()
            for param in inner.parameters(recurse=False)
        }
        return inside | self._managed()


def plain_device(module: Any) -> str | None:
    """The device type of a model without FSDP2; None where its units will say.

    FSDP1 computes on its own device, wherever it keeps its parameters.
    """
    if not isinstance(module, nn.Module) or _holds_unit(module):
        return None
    computes_on = vars(module).get("compute_device")
    if isinstance(computes_on, torch.device):
        return computes_on.type
    first = next(module.parameters(), None)
    return None if first is None else first.device.type


def blocks_of(model: nn.Module) -> Iterator[BlockSpec]:
    """Runs of two or more sibling modules of one class that hold parameters."""
    for name, container in model.named_modules():
        if not isinstance(container, (nn.ModuleList, nn.Sequential)):
            continue
        for class_name, run in groupby(container.children(), original_class):
            blocks = list(run)
            numel = sum(p.numel() for p in blocks[0].parameters())
            if len(blocks) < 2 or numel == 0:
                continue
            yield BlockSpec(
                container=name,
                module_class=class_name,
                count=len(blocks),
                units=sum(_holds_unit(block) for block in blocks),
                numel=numel,
            )


def _holds_unit(block: nn.Module) -> bool:
    return any(hasattr(type(m), "_get_fsdp_state") for m in block.modules())


def tied_names(model: nn.Module) -> Iterator[tuple[str, ...]]:
    """FQNs that share one parameter."""
    names: dict[int, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(param), []).append(name)
    return (tuple(shared) for shared in names.values() if len(shared) > 1)
