"""Checksums of what ranks may have to hold alike, so that nobody has to ask them.

[Note: Replicas] Each rank samples a few elements of a few tensors before the first step
and after recorded steps 1, 2, 4, 8, ...: shards, parameters outside every unit (all of
a model that nothing wraps), buffers, and the optimizers' learning rates and step
counts. Nothing is sent: the analysis compares ranks. On a device the sample is copied
without waiting, and read when it has arrived.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fsdpdoctor.recorder.border import let_through
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.host.model_spec import ModelWatch
from fsdpdoctor.schema import UNKNOWN, ReplicaKind, ReplicaSpec

MOST_UNITS = 8
MOST_OUTSIDE = 16
MOST_BUFFERS = 16
MOST_GROUPS = 4  # of an optimizer's parameters
"""What is sampled at most: a few tens of tensors, some 15 us each on a CPU."""

ELEMENTS = 1024
"""Of each tensor, evenly spread over it."""

BEFORE = UNKNOWN
"""The step of a sample taken before the first step."""


_no_dispatch: Any = torch._C._DisableTorchDispatch  # has no types


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """Something to sample now."""

    name: str
    kind: ReplicaKind
    value: Any  # a tensor, or a number
    trainable: bool = False
    shard_index: int = UNKNOWN


@dataclass(slots=True, kw_only=True)
class _Series:
    """All samples of one thing."""

    item: _Item  # without its value: a model may go before its recording does
    shape: tuple[int, ...]
    samples: dict[int, str] = field(default_factory=dict)


class ReplicaWatch:
    """Samples, and what they were."""

    def __init__(self, model: ModelWatch, units: Units) -> None:
        self._model = model
        self._units = units
        self._series: dict[tuple[str, ReplicaKind], _Series] = {}
        self._waiting: list[tuple[_Series, int, torch.Tensor, Any]] = []
        self._recorded = 0
        self.count = 0  # samples taken
        self.warnings: list[str] = []

    def before_first_step(self) -> None:
        """A model is known, and nothing has stepped yet."""
        if self._recorded == 0:
            self._sample(BEFORE)

    def step_recorded(self, step: int) -> None:
        """A recorded step has ended; the first, second, fourth, ... is sampled."""
        self._recorded += 1
        if self._recorded & (self._recorded - 1) == 0:
            self._sample(step)

    def specs(self) -> tuple[ReplicaSpec, ...]:
        """What has been seen so far, as the header has it."""
        self._arrived()
        return tuple(
            ReplicaSpec(
                name=series.item.name,
                kind=series.item.kind,
                trainable=series.item.trainable,
                shape=series.shape,
                shard_index=series.item.shard_index,
                steps=tuple(series.samples),
                values=tuple(series.samples.values()),
            )
            for series in self._series.values()
            if series.samples
        )

    def _sample(self, step: int) -> None:
        """Take one. What fails ends the sampling, and is said once."""
        if self.warnings:
            return
        try:
            # A mode of the script's counts, or changes, what is dispatched: not ours.
            with torch._C.DisableTorchFunction(), _no_dispatch():
                for item in self._items():
                    self._take(item, step)
            self.count += 1
        except Exception as error:
            let_through(error)
            self.warnings.append(f"replicas were not compared: {error!r}")

    def _take(self, item: _Item, step: int) -> None:
        key = item.name, item.kind
        tensor = item.value if isinstance(item.value, torch.Tensor) else None
        shape = tuple(tensor.shape) if tensor is not None else ()
        series = self._series.get(key)
        if series is None:
            said = replace(item, value=None)
            series = self._series[key] = _Series(item=said, shape=shape)
        if tensor is None:
            series.samples[step] = repr(item.value)
            return
        sample = _sample_of(tensor)
        if sample is None:
            return
        if sample.device.type == "cpu":
            series.samples[step] = _checksum(sample)
        else:
            copied = sample.to("cpu", non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._waiting.append((series, step, copied, event))

    def _arrived(self) -> None:
        """Read the copies that have come, in their order."""
        while self._waiting:
            series, step, copied, event = self._waiting[0]
            if not event.query():
                return
            series.samples[step] = _checksum(copied)
            self._waiting.pop(0)

    def _items(self) -> Iterator[_Item]:
        yield from self._shards()
        outside = sorted(self._model.outside(), key=lambda p: not p[1].requires_grad)
        for name, param in outside[:MOST_OUTSIDE]:
            yield _Item(
                name=name,
                kind=ReplicaKind.OUTSIDE,
                value=param,
                trainable=param.requires_grad,
            )
        buffers = list(self._model.buffers())
        for name, buffer in buffers[:MOST_BUFFERS]:
            yield _Item(name=name, kind=ReplicaKind.BUFFER, value=buffer)
        for optimizer in self._model.optimizers():
            yield from _optimizer(optimizer)

    def _shards(self) -> Iterator[_Item]:
        """The largest shard of some units, evenly spread over the model."""
        units = self._units.all
        for unit in units[:: max(len(units) // MOST_UNITS, 1)][:MOST_UNITS]:
            group = unit.group()
            if group is None or not group.fsdp_params:
                continue
            shards = [internals.local_shard(param) for param in group.fsdp_params]
            param, shard = max(
                zip(group.fsdp_params, shards, strict=True), key=lambda p: p[1].numel()
            )
            yield _Item(
                name=internals.param_fqn(param) or f"unit {unit.index}",
                kind=ReplicaKind.SHARD,
                value=shard,
                trainable=bool(param.sharded_param.requires_grad),
                shard_index=internals.shard_index(group),
            )


def _optimizer(optimizer: torch.optim.Optimizer) -> Iterator[_Item]:
    """Learning rates, and how many steps were taken, where no device must be asked."""
    name = type(optimizer).__name__
    for at, group in enumerate(optimizer.param_groups[:MOST_GROUPS]):
        rate = _number(group.get("lr"))
        if rate is not None:
            yield _Item(
                name=f"{name} group {at}: lr", kind=ReplicaKind.OPTIMIZER, value=rate
            )
        state = next((optimizer.state.get(p) for p in group["params"]), None) or {}
        steps = _number(state.get("step"))
        if steps is not None:
            yield _Item(
                name=f"{name} group {at}: steps",
                kind=ReplicaKind.OPTIMIZER,
                value=steps,
            )


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        if not _is_plain(value) or value.device.type != "cpu" or value.numel() != 1:
            return None
        return float(value)
    return float(value) if isinstance(value, int | float) else None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its elements are its own. A DTensor's, and any other wrapper's, are not:
    with dispatch disabled they are read from where there is no memory, which ends the
    process.
    """
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _sample_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """A copy of some elements; None of what has no plain elements here."""
    if not _is_plain(tensor) or tensor.is_meta or not tensor.numel():
        return None
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        return None
    held = tensor.untyped_storage().nbytes()
    if held < (tensor.storage_offset() + tensor.numel()) * tensor.element_size():
        return None  # FSDP2 has freed it, and keeps its shape: there is nothing to read
    flat = tensor.detach().view(-1)
    return flat[:: max(flat.numel() // ELEMENTS, 1)][:ELEMENTS].clone()


def _checksum(sample: torch.Tensor) -> str:
    return f"{zlib.crc32(sample.view(torch.uint8).numpy().tobytes()):08x}"
