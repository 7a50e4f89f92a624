"""The one step that is counted: when it begins, when it ends, what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.brackets import bracketing
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.memory import refusals
from fsdpdoctor.recorder.memory.live_storages import Highest, LiveStorages
from fsdpdoctor.recorder.memory.storage_mode import (
    Listener,
    StorageMode,
    StorageSource,
)
from fsdpdoctor.recorder.memory.unit_places import STEP_ENDED, UnitPlaces
from fsdpdoctor.recorder.patching import ErrorBorder, Patches, unasked
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.schema import (
    UNKNOWN,
    Bucket,
    MemoryShare,
    MemoryStep,
    Phase,
    UnitMemory,
    Within,
)

FIRST_STEP = 1
"""From 0: optimizers have their state by then, and warm-up is not over: no step that
figures are taken from is slowed down."""


class Models(Protocol):
    """Who knows the model."""

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Its buffers, by name."""
        ...

    def without_unit(self) -> list[Any]:
        """Its parameters that no unit covers."""
        ...

    def optimizers(self) -> Iterator[torch.optim.Optimizer]:
        """Those that have stepped."""
        ...


class _Border(ErrorBorder):
    """An error of ours ends the counting, and nothing else. One that a signal handler
    of the script raises in our frames ends it, too: half of what we do there is undone.
    """

    def fail(self, error: Exception) -> None:
        """Out of the way, at once."""
        if not self.failed:
            self.failed = True
            self._stop(border.describe(error))
        if border.of_signal_handler(error):
            raise error


def source_of(
    live: LiveStorages, device: str, listener: Listener
) -> StorageSource | None:
    """Who tells of storages on a device; None: nobody does."""
    return StorageMode(live, listener) if device == "cpu" else None


class MemoryWatch:
    """Counts one step, and says what it held."""

    def __init__(
        self,
        recording: Recording,
        units: Units,
        models: Models,
        within: Callable[[], Within],
        names: internals.TorchSymbols,
    ) -> None:
        self._rec = recording
        self._units = units
        self._models = models
        self._within = within
        self._names = names
        self._border = _Border(self._fails)
        self._done = False
        self._places: UnitPlaces | None = None
        self._left: StorageSource | None = None  # to be taken off
        self._patches = Patches()
        self._step = UNKNOWN
        self.spec: MemoryStep | None = None
        self.warnings: list[str] = []

    # What the training says

    def root_forward(self, device: str | None) -> None:
        """A micro-batch begins, on a device."""
        self._take_off()
        rec = self._rec
        if self._places is not None and rec.step != self._step:
            self._end(whole=False)
        if self._done or not rec.on or rec.step < FIRST_STEP or device is None:
            return
        if self._places is None and not refusals.must_wait():
            self._border.run(self._begin, device)

    def passed(self, phase: Phase) -> None:
        """A root's forward or backward begins or ends."""
        self._take_off()
        if self._places is not None:
            self._border.run(self._places.moment, f"pass_{phase.key}")

    def boundary(self) -> None:
        """An optimizer has stepped."""
        self._take_off()
        if self._places is not None:
            self._end(whole=True)

    def stop(self) -> None:
        """The recording ends, or counting has to."""
        if self._places is not None:
            self._end(whole=False)
        self._done = True
        self._take_off()

    # What is done about it

    def _begin(self, device: str) -> None:
        places = UnitPlaces(self._rec, self._units, self._within, self._border)
        source = source_of(places.live, device, self)
        if source is None:
            self._done = True
            return
        self._step = self._rec.step
        tensors, evaluated = refusals.tensors_alive()
        refused = source.refusal(evaluated=evaluated)
        if refused is not None:
            self._refuse(refused)
            return
        places.source, self._places = source, places
        with unasked():
            self._census(places, tensors)
        del tensors
        places.live.start()
        places.install(self._names)
        # What runs in backward cannot take a mode off, so it is done before.
        self._patches.wrap(
            torch.autograd,
            "backward",
            bracketing(self._border, self._before, self._nothing),
        )
        source.begin()

    def _before(self, *args: Any, **kwargs: Any) -> None:
        self._take_off()

    def _nothing(self, token: Any, error: BaseException | None) -> None:
        """Nothing is left to say."""

    def _census(self, places: UnitPlaces, tensors: list[torch.Tensor]) -> None:
        """What is there already."""
        for tensor in tensors:
            places.mark(tensor, Bucket.OTHER)
        for _, buffer in self._models.buffers():
            places.mark(buffer, Bucket.BUFFERS)
        places.outside = tuple(self._models.without_unit())
        for param in places.outside:
            places.mark(param, Bucket.OUTSIDE_PARAMETERS)
        places.mark_outside()
        for unit, group in places.groups():
            places.mark_unit(unit, group)
        self._mark_states(places)

    def _mark_states(self, places: UnitPlaces) -> None:
        owners = {
            id(param.sharded_param): unit
            for unit, group in places.groups()
            for param in group.fsdp_params
        }
        for optimizer in self._models.optimizers():
            for param, state in optimizer.state.items():
                for value in state.values() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        unit = owners.get(id(param), UNKNOWN)
                        places.mark(value, Bucket.OPTIMIZER_STATES, unit)

    def mode_failed(self, error: Exception) -> None:
        """An error of ours, in the dispatch mode."""
        self._border.fail(error)

    def _fails(self, why: str) -> None:
        self.warnings.append(f"memory was not counted: {why}")
        self.stop()

    def _refuse(self, why: str) -> None:
        self._done = True
        self.spec = MemoryStep(step=self._step, refused=why)

    def derivative_changes(self, operator: str) -> None:
        """An operator has run whose derivative would be another under a mode."""
        if self._places is not None:
            self._end(whole=False)
        self._refuse(refusals.DERIVATIVE.format(operator))

    def _end(self, *, whole: bool) -> None:
        places, self._places = self._places, None
        assert places is not None
        self._done, self._left = True, places.source
        try:
            if whole and self._left is not None:
                with unasked():
                    self._mark_states(places)
                places.moment(STEP_ENDED)
                self.spec = _spec_of(self._step, places, self._left)
            places.remove()
        except Exception as error:
            places.remove()
            self._border.fail(error)
        finally:
            self._take_off()

    def _take_off(self) -> None:
        if self._left is not None and self._left.end():
            self._left = None
            self._patches.undo()


def _spec_of(step: int, places: UnitPlaces, source: StorageSource) -> MemoryStep | None:
    live = places.live
    highest = live.highest
    if highest is None:
        return None
    seen = {unit for unit, _ in live.most} | places.activations.keys()
    return MemoryStep(
        step=step,
        slowed=source.slows,
        flops=UNKNOWN if source.flops is None else source.flops.total,
        recomputed_flops=UNKNOWN if source.flops is None else source.flops.recomputed,
        peak_bytes=highest.bytes,
        peak_time_ns=highest.time_ns,
        peak_unit=highest.place.unit,
        peak_phase=highest.place.phase,
        peak=_shares(highest),
        units=tuple(
            UnitMemory(
                unit=unit,
                forward_peak_bytes=live.most.get((unit, Phase.FORWARD), UNKNOWN),
                backward_peak_bytes=live.most.get((unit, Phase.BACKWARD), UNKNOWN),
                activation_bytes=places.activations.get(unit, UNKNOWN),
            )
            for unit in sorted(seen - {UNKNOWN})
        ),
        moments=tuple(places.moments),
        moments_left_out=places.left_out,
    )


def _shares(highest: Highest) -> tuple[MemoryShare, ...]:
    found = [
        MemoryShare(bucket=bucket, unit=unit, bytes=size)
        for (bucket, unit), size in highest.parts.items()
        if size
    ]
    return tuple(sorted(found, key=lambda s: (-s.bytes, s.bucket, s.unit)))
