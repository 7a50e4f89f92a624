"""Where the host needs what the device has: copies, numbers, data-dependent shapes.

Each makes the virtual host wait, and is counted with the script's line. A number that
nobody computed is answered with one that is finite: 1, or False. How many elements a
mask selects is taken to be half of them. Both are kept in the tally, for the reader.
What is known without numbers is answered as it is: constants of the script's own, and
that everything is finite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fsdpdoctor.errors import RehearsalError
from fsdpdoctor.recorder.host.host_hooks import user_line
from fsdpdoctor.rehearsal.device import operators
from fsdpdoctor.rehearsal.device.cannot_rehearse import MOST_READS
from fsdpdoctor.rehearsal.device.known_values import (
    MOST,
    constant_of,
    forget,
    mark_constant,
    mark_values,
    owner,
    values_of,
)
from fsdpdoctor.rehearsal.device.memory.storages import (
    holding_of,
    is_shape,
    on_device,
    put_on_host,
)
from fsdpdoctor.rehearsal.device.op_prices import memory_kernel, tensor_bytes
from fsdpdoctor.rehearsal.device.placement import Place
from fsdpdoctor.rehearsal.device.pricing.memory import copy_ns
from fsdpdoctor.rehearsal.device.virtual_device import Kernel

if TYPE_CHECKING:
    from fsdpdoctor.rehearsal.device.dispatch_mode import DispatchMode

_aten: Any = torch.ops.aten
_META = torch.device("meta")
_ALWAYS_REAL = 1 << 18
"""Elements of a device tensor that the host gets as numbers, not as a shape."""

_PINNED = "_fsdpdoctor_pinned"
_OF_ONE_NUMBER = (
    *("full", "zeros", "ones", "scalar_tensor", "full_like", "zeros_like"),
    *("ones_like", "new_full", "new_zeros", "new_ones"),
)


def register(mode: DispatchMode) -> None:
    """Tell the mode which operators are special."""
    values = _HostValues(mode)
    for names, handler in (
        (("_local_scalar_dense",), values.scalar),
        (("equal", "is_nonzero"), values.truth),
        (("nonzero", "masked_select"), values.selected),
        (("_unique2", "unique_dim", "unique_consecutive"), values.unique),
        (("_to_copy",), values.to_copy),
        (("copy_",), values.copy_into),
        (("to",), values.to_any),
        (("index",), values.index),
        (("bincount",), values.bincount),
        (("all", "any", "amax", "amin", "max", "min"), values.same),
        (("logical_not", "bitwise_not"), values.inverted),
        (("logical_or", "bitwise_or"), values.either),
        (_OF_ONE_NUMBER, values.constant),
        (("arange", "eye", "linspace", "range"), values.sequence),
        (("clone",), values.cloned),
    ):
        for name in names:
            packet = getattr(_aten, name, None)
            for overload in packet.overloads() if packet is not None else ():
                mode.special[getattr(packet, overload)] = handler


class _HostValues:
    def __init__(self, mode: DispatchMode) -> None:
        self._mode = mode
        self._device = mode.device

    def _sync(self) -> str:
        place = user_line()
        self._device.synchronize_stream(self._device.current, place)
        return place

    def _made_up(self, place: str, dtype: torch.dtype) -> None:
        tally = self._device.tally
        tally.answered[place] += 1
        if not dtype.is_floating_point:
            tally.counted[place] += 1
        tally.reads[place] += 1
        if tally.reads[place] > MOST_READS:
            raise RehearsalError(
                f"cannot rehearse: {place} has read {MOST_READS:,} numbers of the "
                "device without a collective between them: a loop waits for a number "
                "that no rehearsal computes. Give the rehearsed script a fixed count"
            )

    def _assumed(self, func: Any) -> None:
        name = str(func).removesuffix(".default")
        self._device.tally.assumed[f"{name} at {user_line()}"] += 1

    def scalar(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if not is_shape(tensor):
            return func(*args, **kwargs)
        place = None
        if on_device(tensor):
            self._copy(tensor.element_size(), pinned=False)
            place = self._sync()
        known = constant_of(tensor)
        if known is not None:
            return known
        self._made_up(place or user_line(), tensor.dtype)
        if tensor.dtype == torch.bool:
            return False
        return 1.0 if tensor.is_floating_point() else 1

    def constant(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One number that the script itself gave: a gradient scaler's "no overflow"."""
        result = self._mode.run(func, args, kwargs)
        if is_shape(result) and result.numel() <= MOST:
            name, value = func._opname, 0.0
            if "full" in name:
                value = args[2] if name.startswith("new") else args[1]
            elif "scalar" in name:
                value = args[0]
            elif "ones" in name:
                value = 1.0
            if isinstance(value, int | float):
                mark_constant(result, value)
        return result

    def sequence(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Numbers that follow from the call."""
        result = self._mode.run(func, args, kwargs)
        if is_shape(result) and 0 < result.numel() <= MOST:
            own = {k: v for k, v in kwargs.items() if k in ("dtype", "layout")}
            mark_values(result, func(*args, **own))
        return result

    def cloned(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The same numbers once more."""
        result = self._mode.run(func, args, kwargs)
        return _same_numbers(args[0], result)

    def same(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Of a truth that holds for all elements, the result is that truth."""
        result = self._mode.run(func, args, kwargs)
        known = constant_of(args[0])
        if isinstance(known, bool) and isinstance(result, torch.Tensor):
            mark_constant(result, known)
        return result

    def inverted(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Not."""
        result = self._mode.run(func, args, kwargs)
        known = constant_of(args[0])
        if isinstance(known, bool):
            mark_constant(result, not known)
        return result

    def either(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Of two."""
        result = self._mode.run(func, args, kwargs)
        known = [constant_of(one) for one in operators.tensors_of(args[:2], {})]
        if len(known) == 2 and all(isinstance(one, bool) for one in known):
            mark_constant(result, any(known))
        return result

    def truth(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not any(is_shape(t) for t in operators.tensors_of(args, kwargs)):
            return func(*args, **kwargs)
        place = self._sync()
        known = [values_of(t) if is_shape(t) else t for t in args]
        if all(one is not None for one in known):
            return func(*known)
        self._made_up(place, torch.bool)
        return True

    def selected(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if not is_shape(tensor):
            return func(*args, **kwargs)
        count = self._some_of(func, args[-1])
        selects = "masked_select" in str(func)
        shape = (count,) if selects else (count, tensor.ndim)
        dtype = tensor.dtype if selects else torch.int64
        return self._made([(shape, dtype)], tensor)[0]

    def unique(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if not is_shape(tensor):
            return func(*args, **kwargs)
        count = self._some_of(func, tensor)
        made = self._made(
            [
                ((count,), tensor.dtype),
                (tensor.shape, torch.int64),
                ((count,), torch.int64),
            ],
            tensor,
        )
        return tuple(made)

    def bincount(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if not is_shape(tensor):
            return func(*args, **kwargs)
        self._assumed(func)
        least = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
        return self._made([((max(least, 1),), torch.int64)], tensor)[0]

    def _made(self, specs: Any, like: torch.Tensor) -> list[torch.Tensor]:
        made = []
        for shape, dtype in specs:
            result = torch.empty(tuple(shape), dtype=dtype, device=_META)
            if on_device(like):
                self._mode.ledger.hold(result)
            else:
                put_on_host(result)
            made.append(result)
        if on_device(like):
            kernel = memory_kernel(self._device.spec, 2 * tensor_bytes(like))
            self._device.charge_host(self._device.host.op_ns)
            self._device.launch(kernel, "select")
            self._sync()
        return made

    def index(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A mask among the indices selects as many rows as `selected` says."""
        indices = args[1]
        masks = [i for i in indices if i is not None and i.dtype == torch.bool]
        if not masks or not any(
            is_shape(t) for t in operators.tensors_of(args, kwargs)
        ):
            return self._mode.run(func, args, kwargs)
        changed: list[Any] = []
        for one in indices:
            if one is not None and one.dtype == torch.bool:
                count = self._some_of(func, one)
                rows = torch.empty(count, dtype=torch.int64, device=_META)
                if on_device(one):
                    self._mode.ledger.hold(rows)
                changed += [rows] * one.ndim
            else:
                changed.append(one)
        self._sync()
        return self._mode.run(func, (args[0], changed, *args[2:]), kwargs)

    def _some_of(self, func: Any, mask: torch.Tensor) -> int:
        known = constant_of(mask)
        if isinstance(known, bool):
            return mask.numel() if known else 0
        if (values := values_of(mask)) is not None:
            return int(torch.count_nonzero(values))
        self._assumed(func)
        return max(1, mask.numel() // 2) if mask.numel() else 0

    # Copies

    def _copy(self, size: int, *, pinned: bool) -> None:
        device = self._device
        device.charge_host(device.host.op_ns)
        length = copy_ns(device.spec, size, pinned=pinned)
        device.launch(Kernel(length_ns=length, kind="copy"), "copy")

    def to_copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, target = args[0], self._mode.placement.target
        asked = kwargs.get("device")
        here = is_shape(tensor) and on_device(tensor)
        # DTensor asks below Python, where only the operator says which device.
        below = target is None and asked is not None and asked.type == "cpu"
        if here and (target is Place.HOST or below):
            return self._to_host(tensor, kwargs)
        moves = target is Place.DEVICE or (
            target is None and asked is not None and asked.type in ("meta", "cuda")
        )
        if moves and not here and (not is_shape(tensor) or holding_of(tensor)):
            return self._to_device(tensor, kwargs)
        return _same_numbers(tensor, self._mode.run(func, args, kwargs))

    def to_any(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Met whole where autograd is left out, as in DTensor's random numbers."""
        mode: Any = self._mode
        with mode:
            return func.decompose(*args, **kwargs)

    def _to_device(self, tensor: torch.Tensor, kwargs: Any) -> torch.Tensor:
        result = torch.empty_like(
            tensor, dtype=kwargs.get("dtype") or tensor.dtype, device=_META
        )
        self._mode.ledger.hold(result)
        _same_numbers(tensor, result)
        waits = not kwargs.get("non_blocking", False)
        self._copy(tensor_bytes(tensor), pinned=is_pinned(tensor))
        if waits:
            self._device.synchronize_stream(self._device.current)
        return result

    def _to_host(self, tensor: torch.Tensor, kwargs: Any) -> torch.Tensor:
        dtype = kwargs.get("dtype") or tensor.dtype
        self._copy(tensor_bytes(tensor), pinned=True)
        if not kwargs.get("non_blocking", False):
            self._sync()
        if tensor.numel() <= _ALWAYS_REAL:
            known = values_of(tensor)
            if known is not None:
                return known.to(dtype, copy=True)
            same = constant_of(tensor)
            if same is not None:
                return torch.full(tuple(tensor.shape), same, dtype=dtype)
            self._made_up(user_line(), tensor.dtype)
            return torch.ones(tensor.shape, dtype=dtype)
        result = torch.empty(tensor.shape, dtype=dtype, device=_META)
        put_on_host(result)
        return result

    def copy_into(self, func: Any, args: Any, kwargs: Any) -> Any:
        to, source = args[0], args[1]
        if is_shape(to):
            forget(to)
        there, here = (is_shape(t) and on_device(t) for t in (to, source))
        if not there and not here:
            if is_shape(to) or is_shape(source):
                return to
            return func(*args, **kwargs)
        waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        device = self._device
        if there and here:
            moved = tensor_bytes(to) + tensor_bytes(source)
            device.charge_host(device.host.op_ns)
            device.launch(memory_kernel(device.spec, moved), "aten.copy_")
        elif is_shape(source) and holding_of(source) is None:
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        else:
            pinned = is_pinned(source if there else to)
            self._copy(tensor_bytes(source), pinned=pinned)
            if waits and source.numel() > 1:
                if there:
                    device.synchronize_stream(device.current)
                else:
                    self._sync()
        if there and to.shape == source.shape:
            _same_numbers(source, to)
        return to


def _same_numbers(source: torch.Tensor, result: Any) -> Any:
    """What is known of a tensor is known of its copy."""
    if not isinstance(result, torch.Tensor) or not is_shape(result):
        return result
    if not is_shape(source):
        if 0 < source.numel() <= MOST:
            mark_values(result, source)
        return result
    same = constant_of(source)
    if same is not None:
        mark_constant(result, same)
    elif (values := values_of(source)) is not None:
        mark_values(result, values)
    return result


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """`Tensor.pin_memory`: the same memory, known to be pinned."""
    setattr(owner(tensor), _PINNED, True)
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    """`Tensor.is_pinned`."""
    return bool(getattr(owner(tensor), _PINNED, False))
