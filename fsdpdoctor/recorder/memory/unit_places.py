"""Where the training is in the step that is counted, and what units hold there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

import torch

from fsdpdoctor.recorder.brackets import bracketing
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.memory.live_storages import LiveStorages, Place
from fsdpdoctor.recorder.memory.storage_mode import StorageSource, plain_parts
from fsdpdoctor.recorder.patching import ErrorBorder, Function, Patches, unasked
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.schema import (
    BUCKETS,
    UNKNOWN,
    Bucket,
    MemoryMoment,
    Phase,
    Within,
)

MOST_MOMENTS = 1024
"""Kept of a step: a unit has about six in each micro-batch."""

BACKWARD_PASSED = "pass_backward"
STEP_ENDED = "step_ended"
"""Events of no unit."""

_SIMPLE = (Within.OPTIMIZER, Within.CLIP)


def _storage_of(storage: Any, *args: Any, **kwargs: Any) -> Any:
    return storage


class UnitPlaces:
    """Follows FSDP2's hooks, around those of the recorder, in one step."""

    def __init__(
        self,
        recording: Recording,
        units: Units,
        within: Callable[[], Within],
        guard: ErrorBorder,
    ) -> None:
        self._rec = recording
        self._units = units
        self._within = within
        self._guard = guard
        self._patches = Patches()
        self._hooks: list[tuple[Bucket, int]] = []
        self._forwards: list[int] = []  # innermost last
        self._backwards: list[tuple[int, Any]] = []
        self.live = LiveStorages(self.now)
        self.source: StorageSource | None = None
        self.outside: tuple[Any, ...] = ()  # parameters that no unit covers
        self.activations: dict[int, int] = {}
        self.moments: list[MemoryMoment] = []
        self.left_out = 0

    def now(self) -> Place:
        """What is made now is for this."""
        backward = internals.in_backward()
        phase = Phase.BACKWARD if backward else Phase.FORWARD
        unit = self._running(backward=backward)
        if self._hooks:
            return Place(*self._hooks[-1], unit, phase)
        if self._forwards:
            return Place(Bucket.ACTIVATIONS, unit, unit, phase)
        if backward:
            return Place(Bucket.BACKWARD, unit, unit, phase)
        if self._within() in _SIMPLE:
            return Place(Bucket.OPTIMIZER, UNKNOWN, UNKNOWN, Phase.OPTIMIZER)
        if self._rec.micro_batch != UNKNOWN:  # the loss
            return Place(Bucket.ACTIVATIONS, UNKNOWN, UNKNOWN, phase)
        return Place(Bucket.OTHER, UNKNOWN, UNKNOWN, Phase.OTHER)

    def _running(self, *, backward: bool) -> int:
        if self._forwards:
            return self._forwards[-1]
        return self._backwards[-1][0] if backward and self._backwards else UNKNOWN

    def install(self, names: internals.TorchSymbols) -> None:
        """See FSDP2's hooks."""
        if not names.found:
            return
        pairs: dict[str, tuple[Function, Function]] = {
            "unshard": (self._gathers, self._gathered),
            "wait_for_unshard": (self._copies, self._copied),
            "pre_forward": (self._enters_forward, self._entered_forward),
            "post_forward": (self._leaves_forward, self._left_forward),
            "pre_backward": (self._enters_backward, self._entered_backward),
            "post_backward": (self._reduces, self._has_reduced),
        }
        for name in internals.freeing_methods(names):
            pairs[name] = (self._frees, self._freed)
        for name, (before, after) in pairs.items():
            if names.may_wrap(names.group_class, name):
                self._patches.wrap(
                    names.group_class, name, bracketing(self._guard, before, after)
                )

        self._patches.wrap(
            torch.UntypedStorage,
            "resize_",
            bracketing(self._guard, _storage_of, self._resized),
        )

    def remove(self) -> None:
        """See nothing any more."""
        self._patches.undo()

    def mark(self, tensor: Any, bucket: Bucket, unit: int = UNKNOWN) -> None:
        """What a tensor is for, whatever it was made in."""
        if tensor is None or self.source is None:
            return
        with unasked():
            for part in plain_parts(tensor):
                key = self.source.look(part)
                if key is not None:
                    self.live.is_for(key, bucket, unit)

    def moment(self, event: str, unit: int = UNKNOWN) -> None:
        """Note what is held."""
        if self.source is None:
            return
        self.source.settle()
        for open_unit, group in self._backwards:
            self._mark_full_gradients(open_unit, group)
        place = self.now()
        if internals.in_backward() or event in (BACKWARD_PASSED, STEP_ENDED):
            self.mark_outside()
        self.live.entered()
        if len(self.moments) >= MOST_MOMENTS:
            self.left_out += 1
            return
        held = self.live.buckets
        self.moments.append(
            MemoryMoment(
                time_ns=perf_counter_ns(),
                unit=unit,
                phase=place.phase,
                event=event,
                bytes=tuple(held[bucket] for bucket in BUCKETS),
            )
        )

    def mark_outside(self) -> None:
        """Gradients of what no unit covers, which nobody reduces."""
        for param in self.outside:
            self.mark(param.grad, Bucket.GRADIENTS)

    def mark_unit(self, unit: int, group: Any) -> None:
        """All that a unit holds by itself."""
        for param in group.fsdp_params:
            self.mark(param.sharded_param, Bucket.SHARDED_PARAMETERS, unit)
            shards = getattr(param, "_sharded_post_forward_param_data", None)
            self.mark(shards, Bucket.POST_FORWARD_SHARDS, unit)
            for gathered in getattr(param, "all_gather_outputs", ()):
                self.mark(gathered, Bucket.GATHERED_PARAMETERS, unit)
            self.mark(param.sharded_param.grad, Bucket.GRADIENTS, unit)
        self._mark_full_gradients(unit, group)

    def _mark_full_gradients(self, unit: int, group: Any) -> None:
        for param in group.fsdp_params:
            full = getattr(param, "_unsharded_param", None)
            for gradient in (
                None if full is None else full.grad,
                getattr(param, "unsharded_accumulated_grad", None),
            ):
                self.mark(gradient, Bucket.UNSHARDED_GRADIENTS, unit)

    # FSDP2's hooks

    def _unit(self, group: Any) -> int:
        return self._units.of(group).index

    def _begin(self, bucket: Bucket, group: Any) -> tuple[int, Any]:
        unit = self._unit(group)
        self._hooks.append((bucket, unit))
        return unit, group

    def _gathers(self, group: Any, *args: Any, **kwargs: Any) -> Any:
        return self._begin(Bucket.GATHER_OUTPUTS, group)

    def _gathered(self, token: Any, error: BaseException | None) -> None:
        self._hooks.pop()

    def _copies(self, group: Any, *args: Any, **kwargs: Any) -> Any:
        pending = group._all_gather_result is not None
        return *self._begin(Bucket.GATHERED_PARAMETERS, group), pending

    def _copied(self, token: Any, error: BaseException | None) -> None:
        unit, group, pending = token
        if pending:
            self._look_at(unit, group)
        self._hooks.pop()
        if pending:
            self.moment("gathered", unit)

    def _frees(self, group: Any, *args: Any, **kwargs: Any) -> Any:
        return *self._begin(Bucket.POST_FORWARD_SHARDS, group), internals.is_unsharded(
            group
        )

    def _freed(self, token: Any, error: BaseException | None) -> None:
        unit, group, there = token
        if there:
            self._look_at(unit, group)
        self._hooks.pop()
        if there:
            self.moment("freed", unit)

    def _resized(self, storage: Any, error: BaseException | None) -> None:
        if self.source is not None:
            self.source.resized(storage)

    def _look_at(self, unit: int, group: Any) -> None:
        """FSDP2 allocates and frees these storages in place, which no operator says."""
        for param in group.fsdp_params:
            for gathered in getattr(param, "all_gather_outputs", ()):
                self.mark(gathered, Bucket.GATHERED_PARAMETERS, unit)

    def _enters_forward(self, group: Any, *args: Any, **kwargs: Any) -> int | None:
        unit = self._unit(group)
        if unit in self._forwards:
            return None
        self._forwards.append(unit)
        self.live.entered()
        return unit

    def _entered_forward(self, unit: int | None, error: BaseException | None) -> None:
        if unit is None:
            return
        if error is None:
            self.moment("forward", unit)
        else:
            self._close(unit)

    def _leaves_forward(self, group: Any, *args: Any, **kwargs: Any) -> int | None:
        unit = self._unit(group)
        if unit not in self._forwards:
            return None
        self.moment("forward_ended", unit)
        if not internals.in_backward():
            kept = self.live.parts[Bucket.ACTIVATIONS, unit]
            self.activations[unit] = max(self.activations.get(unit, 0), kept)
        return unit

    def _left_forward(self, unit: int | None, error: BaseException | None) -> None:
        if unit is not None:
            self._close(unit)

    def _close(self, unit: int) -> None:
        self._forwards.remove(unit)
        self.live.entered()

    def _enters_backward(self, group: Any, *args: Any, **kwargs: Any) -> int | None:
        unit = self._unit(group)
        if any(unit == other for other, _ in self._backwards):
            return None
        self._backwards.append((unit, group))
        self.live.entered()
        return unit

    def _entered_backward(self, unit: int | None, error: BaseException | None) -> None:
        if unit is not None:
            self.moment("backward", unit)

    def _reduces(self, group: Any, *args: Any, **kwargs: Any) -> Any:
        unit = self._unit(group)
        self._mark_full_gradients(unit, group)
        return self._begin(Bucket.REDUCE_INPUTS, group)

    def _has_reduced(self, token: Any, error: BaseException | None) -> None:
        unit, group = token
        for param in group.fsdp_params:
            self.mark(param.sharded_param.grad, Bucket.GRADIENTS, unit)
        self._mark_full_gradients(unit, group)
        self._hooks.pop()
        self.moment("backward_ended", unit)
        self._backwards = [one for one in self._backwards if one[0] != unit]
        self.live.entered()

    def groups(self) -> Iterator[tuple[int, Any]]:
        """The units that are there."""
        for unit in self._units.all:
            group = unit.group()
            if group is not None:
                yield unit.index, group
