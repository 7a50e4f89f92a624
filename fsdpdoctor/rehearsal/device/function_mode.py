"""Answers Python for the device: where a tensor is, and what a call with a device does.

Sees every function of torch that Python calls. C++ knows tensors on the device as
meta tensors, so that what Python asks for on `cuda` is asked for on `meta` there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from fsdpdoctor.recorder.host.source_paths import is_ours
from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.rehearsal.device import fused_functions, host_values, known_values
from fsdpdoctor.rehearsal.device.autocast import Autocast
from fsdpdoctor.rehearsal.device.dispatch_mode import faking
from fsdpdoctor.rehearsal.device.memory.storages import (
    holding_of,
    is_shape,
    on_device,
    put_on_host,
)
from fsdpdoctor.rehearsal.device.placement import Place, Placement

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
META = torch.device("meta")
_Tensor: Any = torch.Tensor
_base: Any = torch._C.TensorBase
_raw_device: Callable[[torch.Tensor], torch.device] = _base.device.__get__


def is_cuda(device: object) -> bool:
    """Whether a call's device is the virtual one."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)


def device_of(tensor: torch.Tensor) -> torch.device:
    """What the script believes. Called where no mode is on."""
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:
        return device_of(local)
    if not is_shape(tensor):
        return _raw_device(tensor)
    holding = holding_of(tensor)
    if holding is None:
        return META
    return CPU if holding.ledger is None else CUDA


def _is_of(kind: str, device: torch.device) -> bool:
    return device.type == kind


def take_over_properties(patches: Patches, placement: Placement) -> None:
    """Answer `tensor.device` and its like, also where no mode is on: in the hooks that
    C++ calls inside an operator.
    """

    def put(name: str, of_device: Callable[[torch.device], Any]) -> None:
        raw: Callable[[torch.Tensor], Any] = getattr(_base, name).__get__

        def answer(tensor: torch.Tensor) -> Any:
            with torch._C.DisableTorchFunction():
                if placement.depth or faking() or isinstance(tensor, FakeTensor):
                    return raw(tensor)
                return of_device(device_of(tensor))

        patches.put(torch.Tensor, name, property(answer, lambda t, v: None))

    put("device", lambda device: device)
    for name in ("cuda", "cpu", "meta"):
        put(f"is_{name}", partial(_is_of, name))


class FunctionMode(TorchFunctionMode):
    """The device, as Python sees it."""

    def __init__(self, placement: Placement) -> None:
        super().__init__()
        self._placement = placement
        self.autocast = Autocast()
        self._known: dict[Any, Any] = {}
        self.handlers: dict[Any, Handler] = {
            _Tensor.get_device: _get_device,
            _Tensor.type: self._type,
            _Tensor.to: self._to,
            _Tensor.cuda: self._cuda,
            _Tensor.cpu: self._cpu,
            _Tensor.tolist: self._read,
            _Tensor.numpy: self._read,
            _Tensor.__array__: self._read,
            _Tensor.__repr__: _repr,
            _base.data.__set__: _set_data,
            _Tensor.__format__: _format,
            _Tensor.data_ptr: _data_ptr,
            _Tensor.pin_memory: lambda f, a, k: host_values.pin(a[0]),
            _Tensor.is_pinned: lambda f, a, k: host_values.is_pinned(a[0]),
            _Tensor.record_stream: lambda f, a, k: record_stream(*a, **k),
            _Tensor.backward: self._backward,
            torch.tensor: self._made_of_numbers,
            torch.as_tensor: self._made_of_numbers,
            _Tensor.new_tensor: self._made_of_numbers,
            torch.device: _torch_device,
            **_finite_or_not(),
            **fused_functions.handlers(),
        }

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if faking():
            return func(*args, **kwargs)
        func = self._known.get(func) or self._beneath(func)
        handler = self.handlers.get(func)
        if handler is None:
            return self._call(func, args, kwargs)
        return handler(func, args, kwargs)

    def _beneath(self, func: Any) -> Any:
        """Torch's own, where the recorder has put a layer around a tensor's method: C++
        asks Python for the name, and hands us the layer that has just been called.
        """
        found = func
        while _is_layer(found):
            found = found.__wrapped__
        self._known[func] = found
        return found

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Any function that nothing is special about."""
        if self.autocast.on():
            args, kwargs = self.autocast.cast(func, args, kwargs)
        asked = kwargs.get("device")
        if asked is None:
            return func(*args, **kwargs)
        with self._placement.to(place := _place(asked)):
            if place is Place.DEVICE:
                kwargs = {**kwargs, "device": META}
                kwargs.pop("pin_memory", None)
            elif place is Place.HOST and _on_host_as_shape(args):
                kwargs = {**kwargs, "device": META}
            return func(*args, **_own_generator(kwargs))

    def _backward(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Hooks that run in it need their answers, too."""
        names = ("gradient", "retain_graph", "create_graph", "inputs")
        given = dict(zip(names, args[1:], strict=False)) | kwargs
        gradient = given.pop("gradient", None)
        with self:
            torch.autograd.backward(args[0], gradient, **given)

    def _to(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if len(args) > 1 and isinstance(args[1], torch.Tensor):
            other = args[1]
            return self._moved(func, tensor, device_of(other), other.dtype, kwargs)
        copy = kwargs.pop("copy", False)
        # Positions: (device|dtype)[, dtype], non_blocking, copy
        rest = list(args[1:])
        device = kwargs.pop("device", None)
        if rest and (rest[0] is None or not isinstance(rest[0], torch.dtype)):
            device = rest.pop(0)
        dtype = kwargs.pop("dtype", None)
        if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
            dtype = rest.pop(0)
        kwargs.setdefault("non_blocking", rest.pop(0) if rest else False)
        copy = rest.pop(0) if rest else copy
        if device is not None:
            device = CUDA if is_cuda(device) else torch.device(device)
        return self._moved(func, tensor, device, dtype, {**kwargs, "copy": copy})

    def _moved(
        self,
        func: Any,
        tensor: torch.Tensor,
        device: torch.device | None,
        dtype: torch.dtype | None,
        kwargs: dict[str, Any],
    ) -> Any:
        here = device_of(tensor)
        dtype = tensor.dtype if dtype is None else dtype
        if device is None or device.type == here.type:
            return func(tensor, dtype, **kwargs)
        if here.type == "meta" and device.type == "cuda":
            raise NotImplementedError(
                "Cannot copy out of meta tensor; no data! Please use "
                "torch.nn.Module.to_empty() instead of torch.nn.Module.to()"
            )
        if device.type == "meta" and here.type != "cpu":
            size, stride = tensor.shape, tensor.stride()  # made like none that is there
            return torch.empty_strided(size, stride, dtype=dtype, device=META)
        kwargs.pop("copy", None)
        if device.type not in ("cuda", "cpu"):
            return func(tensor, device, dtype, **kwargs)
        place = Place.DEVICE if device.type == "cuda" else Place.HOST
        onto = META if place is Place.DEVICE else CPU
        with self._placement.to(place):
            return torch.ops.aten._to_copy(tensor, dtype=dtype, device=onto, **kwargs)

    def _cuda(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        kwargs = {k: v for k, v in kwargs.items() if k == "non_blocking"}
        return self._moved(_Tensor.to, args[0], CUDA, None, kwargs)

    def _cpu(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return self._moved(_Tensor.to, args[0], CPU, None, {})

    def _type(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The name of a tensor's type, or the tensor as another one."""
        tensor = args[0]
        kind = args[1] if len(args) > 1 else kwargs.get("dtype")
        if kind is None:
            name: str = func(tensor)  # of a shape: torch.meta.FloatTensor
            here = device_of(tensor).type
            return name.replace("meta.", "" if here == "cpu" else f"{here}.")
        if isinstance(kind, torch.dtype):
            return tensor.to(kind)
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        device = CUDA if name.startswith("torch.cuda.") else CPU
        dtype = getattr(torch, name.rpartition(".")[2]).dtype
        return self._moved(_Tensor.to, tensor, device, dtype, {})

    def _made_of_numbers(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """On the host first, and then copied, as torch does: the numbers stay known."""
        asked, data = kwargs.get("device"), args[-1] if args else kwargs.get("data")
        if asked is None:
            new = func is _Tensor.new_tensor
            asked = device_of(args[0]) if new else _device.CURRENT_DEVICE
        if not is_cuda(asked) or isinstance(data, torch.Tensor):
            return self._call(func, args, kwargs)
        own = {k: v for k, v in kwargs.items() if k == "dtype"}
        if func is _Tensor.new_tensor:
            own.setdefault("dtype", args[0].dtype)
        on_host = torch.tensor(data, device=CPU, **own)
        made = self._moved(_Tensor.to, on_host, CUDA, None, {})
        return made.requires_grad_(kwargs.get("requires_grad", False))

    def _read(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The host reads all of a tensor."""
        tensor = args[0]
        if not is_shape(tensor):
            return func(*args, **kwargs)
        if on_device(tensor):
            with self._placement.to(Place.HOST):
                torch.ops.aten._to_copy(tensor.detach(), device=CPU)
        numbers = known_values.values_of(tensor)
        if numbers is None:
            numbers = torch.ones(tuple(tensor.shape), dtype=tensor.dtype)
        return func(numbers, *args[1:], **kwargs)


def _is_layer(func: Any) -> bool:
    code = getattr(func, "__code__", None)
    return (
        code is not None
        and hasattr(func, "__wrapped__")
        and (is_ours(code.co_filename) or code.co_filename.startswith("<fsdpdoctor"))
    )


def _place(device: object) -> Place | None:
    if is_cuda(device):
        return Place.DEVICE
    kind = device.type if isinstance(device, torch.device) else str(device)
    return Place.HOST if kind.startswith("cpu") else None


def _on_host_as_shape(args: tuple[Any, ...]) -> bool:
    """Whether a host tensor is made like one that has a shape only."""
    like = args[0] if args and isinstance(args[0], torch.Tensor) else None
    return like is not None and is_shape(like)


def _own_generator(kwargs: dict[str, Any]) -> dict[str, Any]:
    if kwargs.get("generator") is not None and kwargs.get("device") is META:
        return {**kwargs, "generator": None}
    return kwargs


def _torch_device(func: Any, args: Any, kwargs: Any) -> torch.device:
    """A number alone is the accelerator's."""
    if len(args) == 1 and not kwargs and isinstance(args[0], int):
        return torch.device("cuda", args[0])
    return func(*args, **kwargs)  # type: ignore[no-any-return]


def _finite_or_not() -> dict[Any, Handler]:
    """Nobody knows the numbers; a job that is rehearsed has none that is not one."""

    def known(value: bool) -> Handler:
        def handler(func: Any, args: Any, kwargs: Any) -> Any:
            result = func(*args, **kwargs)
            local = getattr(result, "_local_tensor", result)
            known_values.mark_constant(local, value)
            return result

        return handler

    return {
        getattr(owner, name): known(name == "isfinite")
        for owner in (torch, _Tensor)
        for name in ("isfinite", "isnan", "isinf")
    }


def _set_data(func: Any, args: Any, kwargs: Any) -> None:
    """A tensor whose numbers the host knows gets what has a shape alone, as where
    `fully_shard` moves a model's buffers: the two change places, object and all.
    """
    tensor, new = args
    if is_shape(new) and not is_shape(tensor):
        torch.utils.swap_tensors(tensor, new)  # type: ignore[no-untyped-call]
    else:
        func(tensor, new, **kwargs)


def _get_device(func: Any, args: Any, kwargs: Any) -> int:
    return 0 if device_of(args[0]).type == "cuda" else -1


def _repr(func: Any, args: Any, kwargs: Any) -> str:
    tensor = args[0]
    if is_shape(tensor) and holding_of(tensor) is not None:
        return (
            f"tensor(..., device='{device_of(tensor)}', size={tuple(tensor.shape)}, "
            f"dtype={tensor.dtype})"
        )
    return str(func(*args, **kwargs))


def _format(func: Any, args: Any, kwargs: Any) -> str:
    tensor = args[0]
    if not is_shape(tensor):
        return str(func(*args, **kwargs))
    shown = _repr(func, (tensor,), {}) if tensor.dim() else tensor.item()
    return format(shown, *args[1:])


def _data_ptr(func: Any, args: Any, kwargs: Any) -> int:
    tensor = args[0]
    if is_shape(tensor):
        offset = tensor.storage_offset() * tensor.element_size()
        return int(id(tensor.untyped_storage()) + offset)
    return int(func(*args))


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """`Tensor.record_stream`: the block is used on this stream, too."""
    holding = holding_of(tensor) if is_shape(tensor) else None
    if holding is not None and holding.ledger is not None and holding.block is not None:
        stream.device_allocator.record_stream(holding.block, stream.number)


def as_host_shape(tensor: torch.Tensor) -> torch.Tensor:
    """A parameter's shape: what it holds is never looked at."""
    shape = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META
    )
    put_on_host(shape)
    return shape
