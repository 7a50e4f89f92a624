"""Applies a plan to the script's model, without a word in the script.

[Note: Applying a plan] What can be set on a sharded model is set when FSDP2
initialises it, in its first forward. What only `fully_shard` can be told is told
by `resharding`. A plan is applied whole or not at all: where it does not fit, the
job ends with one line before any parameter has changed. Every rank decides alike,
by the model alone, so no rank waits for another.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fsdpdoctor.errors import PlanError
from fsdpdoctor.plan_file import Settings, UnitSettings, module_names, words
from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.changes.fully_shard_override import FullyShardOverride
from fsdpdoctor.recorder.forward_frames import outermost_module
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.schema import ROOT

_UNIT_METHODS: Mapping[str, str] = {
    "reshard_after_forward": "set_reshard_after_forward",
    "forward_prefetch": "set_modules_to_forward_prefetch",
    "backward_prefetch": "set_modules_to_backward_prefetch",
}
_MODEL_METHODS: Mapping[str, str] = {
    "unshard_async_op": "_set_unshard_async_op",
    "separate_reduce_scatter_group": "set_separate_reduce_scatter_group",
    "max_input_buffers": "set_reduce_scatter_max_input_buffers",
}
_ACCUMULATION_METHODS: Mapping[str, tuple[str, ...]] = {
    "every": ("set_requires_gradient_sync",),
    "last": ("set_requires_gradient_sync",),
    "keep": (
        "set_requires_gradient_sync",
        "set_reshard_after_backward",
        "set_is_last_backward",
    ),
}
"""What of FSDPModule each setting calls."""


@contextmanager
def applying(settings: Settings, folder: Path) -> Iterator[Applier]:
    """While it is open, models that the plan fits are changed by it.

    What was applied goes into `folder`'s run.json. Raises PlanError where this torch
    or this job cannot do what the plan says; a model that does not fit raises it out
    of the script.
    """
    applier = Applier(settings, lambda: note_applied(folder, words(settings)))
    applier.attach()
    try:
        yield applier
    finally:
        applier.detach()


def note_applied(folder: Path, said: tuple[str, ...]) -> None:
    """Put what was applied into run.json, where there is one. Every rank writes the
    same; a disk that takes no more costs the note, not the training.
    """
    path = folder / "run.json"
    new = path.with_name(f".run.{os.getpid()}.json")
    try:
        header = json.loads(path.read_bytes())
        header["applied"] = list(said)
        new.write_text(json.dumps(header, indent=1))
        new.replace(path)
    except (OSError, ValueError) as error:
        border.say(f"fsdpdoctor: the plan is applied, and not noted: {error}")
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)


class Applier:
    """One plan, on its way into a process's models; see [Note: Applying a plan]."""

    def __init__(self, settings: Settings, on_applied: Callable[[], None]) -> None:
        self._settings = settings
        self._on_applied = on_applied
        self._names = internals.TorchSymbols()
        self._patches = Patches()
        self._handles: list[Any] = []
        self._misfit: str | None = None  # why it did not fit the model seen last
        self._applied = False
        self._micro_batch = 0

    def attach(self) -> None:
        """Wait for a model. Raises PlanError where the plan can never be applied."""
        self._check_torch()
        self._check_job()
        if self._settings.by_unit or self._settings.regroups:
            _check_lists(self._settings)
        resharding = FullyShardOverride(self._settings)
        if resharding.needed:
            resharding.attach(self._patches)
        state_class = self._names.state_class
        self._patches.put(
            state_class, "_lazy_init", self._before_init(state_class._lazy_init)
        )
        if self._settings.accumulation is not None:
            name = "_register_root_post_backward_final_callback"
            original = getattr(state_class, name)
            self._patches.put(state_class, name, self._before_backward(original))
        self._handles = [
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ended),
        ]

    def detach(self) -> None:
        """Change no further model."""
        self._patches.undo()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def script_ended(self) -> None:
        """The script has come to its own end."""
        self.require_applied("the script ended")

    def require_applied(self, when: str) -> None:
        """Raise PlanError unless some model has got the plan."""
        if self._applied:
            return
        why = self._misfit or (
            f"{when}, and no model was sharded with fully_shard and run"
        )
        raise PlanError(f"{self._settings.path} was not applied: {why}")

    # What can be checked before the script runs

    def _check_torch(self) -> None:
        if not self._names.found:
            raise PlanError(
                f"{self._settings.path} cannot be applied: torch {torch.__version__} "
                "has no FSDP2 (torch.distributed.fsdp.fully_shard)"
            )
        for method in self._methods():
            if not hasattr(self._names.module_class, method):
                raise PlanError(
                    f"{self._settings.path} cannot be applied: it needs "
                    f"FSDPModule.{method}, which torch {torch.__version__} does not "
                    "have"
                )

    def _methods(self) -> Iterator[str]:
        settings = self._settings
        for name, method in _UNIT_METHODS.items():
            if any(getattr(u, name) is not None for u in settings.units.values()):
                yield method
        for name, method in _MODEL_METHODS.items():
            if getattr(settings, name) is not None:
                yield method
        if settings.accumulation is not None:
            yield from _ACCUMULATION_METHODS[settings.accumulation]

    def _check_job(self) -> None:
        world = _world_size()
        mesh = self._settings.mesh
        wanted = mesh[0] * mesh[1] if mesh else self._settings.world_size
        if wanted not in (None, world):
            raise PlanError(
                f"{self._settings.path} is for {wanted} ranks, this job has {world}"
            )

    # A model is there

    def _before_init(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def lazy_init(state: Any) -> None:
            if state._is_root is None:
                self._meet(state)
            original(state)

        return lazy_init

    def _meet(self, root: Any) -> None:
        """A tree is about to be initialised: apply, or say why not."""
        states = self._states(root)
        if self._misfit is not None:
            # Under no_grad it may be another model: a teacher, an evaluation's.
            if torch.is_grad_enabled():
                self.require_applied("")
            return
        _apply_units(self._settings, states)
        model = root._modules[0]
        for name, method in _MODEL_METHODS.items():
            if (value := getattr(self._settings, name)) is not None:
                getattr(model, method)(value)
        if not self._applied:
            self._applied = True
            self._on_applied()

    def _states(self, root: Any) -> dict[frozenset[str], Any]:
        """The states of the plan's units, by the names of their modules."""
        inner = units_in(root._modules[0])
        outer_module = outermost_module()
        choices = [inner]
        if outer_module is not None and outer_module is not root._modules[0]:
            # Where a model has several trees, units are named within the model.
            choices.append(units_in(outer_module))
        wanted = {frozenset(name) for name in self._unit_names()}
        for states in choices:
            if not wanted or set(states) == wanted:
                self._misfit = self._other_size(states) if wanted else None
                return states
        self._misfit = _difference(wanted, set(inner))
        return inner

    def _other_size(self, states: Mapping[frozenset[str], Any]) -> str | None:
        """Why a model whose units have the same names is still another one."""
        known = self._settings.parameters
        there = sum(
            param._orig_size.numel()
            for state in states.values()
            for group in internals.groups_of(state)
            for param in group.fsdp_params
        )
        if known in (None, there):
            return None
        return (
            f"it is for a model of {known:,} parameters, this one has {there:,}: make "
            "a plan from a run of this model"
        )

    def _unit_names(self) -> Iterator[tuple[str, ...]]:
        settings = self._settings
        if ROOT in settings.units:
            yield ("",)
        yield from settings.modules

    # Micro-batches

    def _before_backward(self, original: Callable[[Any], None]) -> Any:
        def begin(state: Any) -> None:
            if (
                self._applied
                and not state._state_ctx.post_backward_final_callback_queued
            ):
                self._set_flags(internals.all_states(state)[0]._modules[0])
            original(state)

        return begin

    def _set_flags(self, model: Any) -> None:
        """A backward begins, perhaps its step's last."""
        settings = self._settings
        self._micro_batch += 1
        how = settings.accumulation
        last = how == "every" or self._micro_batch == settings.micro_batches
        for method in _ACCUMULATION_METHODS[how or "every"]:
            getattr(model, method)(last)

    def _optimizer_begins(self, optimizer: Any, *args: Any) -> None:
        self.require_applied("an optimizer was about to step")
        settings, seen = self._settings, self._micro_batch
        if settings.accumulation in (None, "every") or seen == 0:
            return  # another optimizer may have stepped already
        if seen != settings.micro_batches:
            raise PlanError(
                f"{settings.path} reduces gradients after {settings.micro_batches} "
                f"micro-batches, and this step had {seen}: make a plan from a run that "
                "accumulates as this one does"
            )

    def _optimizer_ended(self, optimizer: Any, *args: Any) -> None:
        self._micro_batch = 0


def _world_size() -> int:
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", 1))


def units_in(model: nn.Module) -> dict[frozenset[str], Any]:
    """States that hold parameters, by the FQNs of their modules."""
    names: dict[int, set[str]] = {}
    states: dict[int, Any] = {}
    for name, module in model.named_modules():
        get_state = getattr(type(module), "_get_fsdp_state", None)
        if get_state is None:
            continue
        state = get_state(module)
        states[id(state)] = state
        names.setdefault(id(state), set()).add(name)
    return {
        frozenset(names[at]): state
        for at, state in states.items()
        if internals.groups_of(state)
    }


def _apply_units(settings: Settings, states: Mapping[frozenset[str], Any]) -> None:
    if not settings.by_unit:
        return
    modules = {name: s._modules[0] for names, s in states.items() for name in names}

    def module(unit: str) -> Any:
        return modules[module_names(unit)[0]]

    for unit, said in settings.units.items():
        size = said.reshard_after_forward
        if isinstance(size, bool):
            module(unit).set_reshard_after_forward(size, recurse=False)
        if said.forward_prefetch is not None:
            targets = [module(target) for target in said.forward_prefetch]
            module(unit).set_modules_to_forward_prefetch(targets)
        if said.backward_prefetch is not None:
            targets = [module(target) for target in said.backward_prefetch]
            module(unit).set_modules_to_backward_prefetch(targets)


def _check_lists(settings: Settings) -> None:
    """Every target of a list is one of the plan's own units."""
    for unit, said in settings.units.items():
        for target in _targets(said):
            if target not in settings.units:
                raise PlanError(
                    f"{settings.path} has {unit} prefetch {target}, which is none of "
                    f"its units: {', '.join(settings.units)}"
                )


def _targets(said: UnitSettings) -> Iterator[str]:
    yield from said.forward_prefetch or ()
    yield from said.backward_prefetch or ()


def _difference(wanted: set[frozenset[str]], there: set[frozenset[str]]) -> str:
    """One line on why units do not match."""

    def named(units: set[frozenset[str]]) -> str:
        return "; ".join(sorted(", ".join(sorted(u)) or ROOT for u in units)) or "none"

    if missing := wanted - there:
        return (
            f"it names {named(missing)}, no unit of this model, whose units are "
            f"{named(there)}"
        )
    return (
        f"this model's {named(there - wanted)} are no units of the plan: make one from "
        "a run of this model"
    )
