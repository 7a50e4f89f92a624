"""Sees every operator below autograd: makes its results, and charges it.

A tensor argument is on the device, on the host as a shape, real, or a meta tensor of
the script's own; see `storages`. An operator with one on the device runs there. What
is real only is computed for real, since data loaders hand out numbers that scripts
look at.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch._prims import rng_prims
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from fsdpdoctor.rehearsal.device import host_values, known_values, operators
from fsdpdoctor.rehearsal.device.memory.storages import (
    Ledger,
    holding_of,
    is_shape,
    put_on_host,
)
from fsdpdoctor.rehearsal.device.op_prices import price
from fsdpdoctor.rehearsal.device.operators import Operator, Shape
from fsdpdoctor.rehearsal.device.placement import Place, Placement
from fsdpdoctor.rehearsal.device.virtual_device import Kernel, VirtualDevice

_aten: Any = torch.ops.aten
_Mode: Any = TorchDispatchMode  # its own methods have no types
_NO_FUNCTION: Any = torch._C.DisableTorchFunction
_precision: Callable[[], str] = torch._C._get_float32_matmul_precision
_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_disabled = torch._C._disabled_torch_dispatch_impl

_fake: Any = torch._C._TorchDispatchModeKey.FAKE
_mode: Callable[[Any], Any] = torch._C._get_dispatch_mode


def faking() -> bool:
    """Whether torch itself asks for shapes, as DTensor does: none of our business."""
    return _mode(_fake) is not None


LARGE_ELEMENTS = 1 << 20
"""A host tensor that is made larger than this has a shape only."""

META = torch.device("meta")


class _Remembered:
    """What an operator gave for arguments of these shapes."""

    __slots__ = ("kernel", "single", "specs")

    def __init__(self, results: Any, kernel: Kernel | None) -> None:
        self.kernel = kernel
        self.single = isinstance(results, torch.Tensor)
        self.specs = [_spec(one) for one in ([results] if self.single else results)]

    def make(self) -> Any:
        made = [
            one
            if not isinstance(one, _Spec)
            else torch.empty_strided(one.size, one.stride, dtype=one.dtype, device=META)
            for one in self.specs
        ]
        return made[0] if self.single else tuple(made)


class _Spec:
    __slots__ = ("dtype", "size", "stride")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.size, self.stride = tuple(tensor.shape), tensor.stride()
        self.dtype = tensor.dtype


def _spec(one: Any) -> Any:
    return _Spec(one) if isinstance(one, torch.Tensor) else one


class DispatchMode(_Mode):  # type: ignore[misc]
    """The device, as the dispatcher of torch sees it."""

    def __init__(
        self, device: VirtualDevice, ledger: Ledger, placement: Placement
    ) -> None:
        super().__init__()
        self.device = device
        self.ledger = ledger
        self.placement = placement
        self.special: dict[Any, Callable[..., Any]] = {}
        self.fused: Callable[[Operator, Kernel, Any, Any], Kernel | None] | None = None
        self._operators: dict[Any, Operator] = {}
        self._remembered: dict[Any, _Remembered] = {}
        self._subclasses: dict[type, bool] = {}
        host_values.register(self)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        for one in types:
            if self._is_subclass(one):
                if issubclass(one, FakeTensor):
                    return func(*args, **kwargs or {})
                return NotImplemented
        with _NO_FUNCTION():
            if faking():
                return func(*args, **kwargs or {})
            special: Callable[..., Any] = self.special.get(func, self.run)
            with self.placement.beneath():
                return special(func, args, kwargs or {})

    def _is_subclass(self, kind: type) -> bool:
        found = self._subclasses.get(kind)
        if found is None:
            dispatch = getattr(kind, "__torch_dispatch__", _disabled)
            found = self._subclasses[kind] = dispatch is not _disabled
        return found

    def operator(self, func: Any) -> Operator:
        """What is known of an overload."""
        found = self._operators.get(func)
        if found is None:
            found = self._operators[func] = operators.inspect(func)
        return found

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Any operator that nothing is special about."""
        asked = kwargs.get("device")
        if asked is not None and asked.type == "cuda":
            with self.placement.to(Place.DEVICE):
                return self.run(func, args, {**kwargs, "device": META})
        tensors = operators.tensors_of(args, kwargs)
        shapes = [t for t in tensors if is_shape(t)]
        if not shapes:
            return self._without_shapes(func, args, kwargs, tensors)
        place = self._place(shapes)
        if len(shapes) < len(tensors):
            args, kwargs = (
                _as_shapes(args),
                {k: _as_shapes(v) for k, v in kwargs.items()},
            )
            tensors = operators.tensors_of(args, kwargs)
        return self.run_at(place, func, args, kwargs, tensors)

    def run_at(
        self,
        place: Place | None,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> Any:
        """On the device, on the host, or nowhere; all tensors are shapes."""
        operator = self.operator(func)
        results, kernel = self._results(operator, func, args, kwargs, tensors)
        if place is Place.HOST:
            for result in operators.flat_results(results):
                put_on_host(result)
        elif place is Place.DEVICE:
            self._charge(operator, kernel, tensors, results)
        return results

    def _place(self, shapes: list[torch.Tensor]) -> Place | None:
        if self.placement.target is not None:
            return self.placement.target
        place: Place | None = None
        for one in shapes:
            holding = holding_of(one)
            if holding is not None:
                if holding.ledger is not None:
                    return Place.DEVICE
                place = Place.HOST
        return place

    def _charge(
        self, operator: Operator, kernel: Kernel | None, tensors: Any, results: Any
    ) -> None:
        device = self.device
        for result in operators.flat_results(results):
            self.ledger.hold(result)
        if self.placement.free:
            return
        host, backward = device.host, _graph_task() != -1
        if kernel is None:
            device.charge_host(host.view_ns)
            return
        if self.fused is not None:
            fused = self.fused(operator, kernel, tensors, results)
            if fused is not kernel:
                device.charge_host(host.compiled_op_ns)
                if fused is not None:
                    device.launch(fused, operator.name)
                return
        if operator.guessed:
            device.tally.guessed[operator.name] += 1
        device.charge_host(host.backward_op_ns if backward else host.op_ns)
        device.launch(kernel, operator.name)

    def _results(
        self,
        operator: Operator,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> tuple[Any, Kernel | None]:
        spec = self.device.spec
        if operator.shape is Shape.VIEW:
            results = func(*args, **kwargs)
            moves = operator.name.startswith("fsdp.")
            return results, price(spec, func, args, tensors, []) if moves else None
        if operator.shape is Shape.IN_PLACE:
            return self._in_place(operator, func, args, kwargs, tensors)
        try:
            # Products of float32 take another time in tf32.
            key = (func, _precision(), operators.signature(args), _of_kwargs(kwargs))
            found = self._remembered.get(key)
        except TypeError:
            key, found = None, None
        if found is not None:
            return found.make(), found.kernel
        results = func(*args, **kwargs)
        outs = operators.flat_results(results)
        kernel = price(spec, func, args, tensors, outs)
        if key is not None and _is_plain(results, tensors):
            self._remembered[key] = _Remembered(results, kernel)
        return results, kernel

    def _in_place(
        self,
        operator: Operator,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> tuple[Any, Kernel | None]:
        if operator.changes_shape:
            results = func(*args, **kwargs)
            for tensor in operators.flat_results(results):
                self.resized(tensor)
            return results, None
        back = [kwargs[w] if isinstance(w, str) else args[w] for w in operator.returned]
        outs = back or _mutable_lists(func, args, kwargs)
        if operator.writes_out:
            tensors = [t for t in tensors if all(t is not out for out in outs)]
        kernel = price(self.device.spec, func, args, tensors, outs)
        # Every gradient is finite: a scaler's flag stays down, and its scale as it is.
        if not operator.name.startswith("aten._amp_"):
            known_values.forget_small(outs)
        if not back:
            return None, kernel
        return (back[0] if len(back) == 1 else tuple(back)), kernel

    def resized(self, tensor: torch.Tensor) -> None:
        """A tensor's storage may have another size now."""
        holding = holding_of(tensor)
        size = torch.Tensor.untyped_storage(tensor).nbytes()
        if holding is not None and holding.ledger is not None and holding.size != size:
            self.ledger.resize(holding, size)

    def _without_shapes(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> Any:
        """Real tensors, or a tensor out of nothing."""
        asked = kwargs.get("device")
        if asked is not None and asked.type == "meta":
            place = self.placement.target
            return self.run_at(place, func, args, kwargs, tensors)
        if not tensors and _elements(args) > LARGE_ELEMENTS:
            kwargs = {**kwargs, "device": META}
            return self.run_at(Place.HOST, func, args, kwargs, tensors)
        self.device.charge_host(self.device.host.view_ns)
        return func(*args, **kwargs)


def _random(
    mode: Any, _begin: int, _end: int, op: Any, *args: Any, **kwargs: Any
) -> Any:
    """DTensor's random numbers, without the offsets that its generator would get."""
    with mode:
        return op(*args, **kwargs)


_rng: Any = getattr(rng_prims, "run_dtensor_rng_op", None)  # from torch 2.12 on
if _rng is not None:
    _rng.py_impl(DispatchMode)(_random)


# Dynamo never sees it: what keeps it from looking costs as much as the rest.
_class: Any = DispatchMode
_class.__torch_dispatch__ = inspect.unwrap(_class.__torch_dispatch__)


def as_shape(tensor: torch.Tensor) -> torch.Tensor:
    """A real tensor's shape, as a meta tensor; a meta tensor itself."""
    if is_shape(tensor):
        return tensor
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META
    )


def _as_shapes(args: Any) -> Any:
    return operators.mapped(args, as_shape)


def _of_kwargs(kwargs: dict[str, Any]) -> Any:
    if not kwargs:
        return ()
    return tuple([(name, operators.signature(arg)) for name, arg in kwargs.items()])


def _is_plain(results: Any, tensors: list[torch.Tensor]) -> bool:
    """Whether results can be made again: new, whole, and not inside one another."""
    outs = operators.flat_results(results)
    flat = [results] if isinstance(results, torch.Tensor) else results
    if not isinstance(flat, list | tuple) or any(isinstance(o, list) for o in flat):
        return False
    if any(tuple(out.shape) and out.storage_offset() for out in outs):
        return False
    ids = [id(torch.Tensor.untyped_storage(t)) for t in (*tensors, *outs)]
    return len(set(ids)) == len(ids) or not set(ids[len(tensors) :]) & set(
        ids[: len(tensors)]
    )


def _mutable_lists(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """What an operator without results writes."""
    found: list[torch.Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = kwargs.get(argument.name) if i >= len(args) else args[i]
        found += operators.flat_results(given)
    return found


def _elements(args: tuple[Any, ...]) -> int:
    """Of a tensor that is made of a size."""
    if args and isinstance(args[0], list | tuple | torch.Size):
        sizes = args[0]
        if all(isinstance(size, int) for size in sizes):
            return math.prod(sizes)
    return 0
