"""Numbers that are known although nothing is computed: those that the host gave.

A tensor made of constants, or copied from a small one of the host's, keeps them beside
its storage, so that its views have theirs, until something writes to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fsdpdoctor.rehearsal.collective_values import flat
from fsdpdoctor.rehearsal.device.memory.storages import is_shape

MOST = 4096
"""Elements of a tensor whose numbers are kept: flags, counts, losses, not data."""

_CONSTANT = "_fsdpdoctor_constant"  # of all elements
_VALUES = "_fsdpdoctor_values"  # of the storage's elements, in their order


def owner(tensor: torch.Tensor) -> Any:
    """The storage, which all views share."""
    with torch._C.DisableTorchFunction():
        return torch.Tensor.untyped_storage(tensor)


def constant_of(tensor: torch.Tensor) -> Any:
    """What all elements of a tensor are known to be; None where they are not."""
    found = getattr(owner(tensor), _CONSTANT, None)
    if found is None and tensor.numel() == 1:
        values = values_of(tensor)
        return None if values is None else values.item()
    return found


def values_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """All of a tensor's numbers, as a real one; None where they are not known."""
    storage = owner(tensor)
    flat: torch.Tensor | None = getattr(storage, _VALUES, None)
    with torch._C.DisableTorchFunction():
        shape, stride = tuple(tensor.shape), tensor.stride()
        if flat is None:
            same = getattr(storage, _CONSTANT, None)
            if same is None or tensor.numel() > MOST:
                return None
            return torch.full(shape, same, dtype=tensor.dtype)
        if flat.dtype != tensor.dtype or flat.nbytes != storage.nbytes():
            return None  # seen as another type, or of another size since
        return flat.as_strided(shape, stride, tensor.storage_offset())


def mark_constant(tensor: torch.Tensor, value: Any) -> None:
    """All elements of a tensor are known."""
    if is_shape(tensor):
        forget(tensor)
        setattr(owner(tensor), _CONSTANT, as_type(tensor.dtype, value))


def mark_values(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """A tensor of its own storage has the numbers of a real one."""
    with torch._C.DisableTorchFunction():
        if values.numel() > MOST or not tensor.is_contiguous():
            return
        forget(tensor)
        own = values.detach().to(tensor.dtype, copy=True)
        setattr(owner(tensor), _VALUES, own.contiguous().flatten())


def forget(tensor: torch.Tensor) -> None:
    """It has been written to."""
    kept = vars(owner(tensor))
    kept.pop(_CONSTANT, None)
    kept.pop(_VALUES, None)


def forget_small(tensors: list[torch.Tensor]) -> None:
    """These have been written to; a large one has no numbers, but perhaps one truth."""
    for one in tensors:
        if one.numel() <= MOST or one.dtype == torch.bool:
            forget(one)


def as_type(dtype: torch.dtype, value: Any) -> float | bool:
    """A number as a tensor of this type has it."""
    if dtype.is_floating_point:
        return float(value)
    return bool(value) if dtype == torch.bool else int(value)


def follow_collective(fill: Callable[[], None]) -> None:
    """A collective of numbers that are known leaves what it leaves of real ones; of
    others nothing is known afterwards.
    """
    if not isinstance(fill, partial):
        return
    group, outputs, inputs, opts = fill.args
    given, written = flat(inputs), flat(outputs)
    if sum(one.numel() for one in written) > MOST:
        forget_small(written)
        return
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        real = {id(one): _real(one) for one in given}
        known = all(one is not None for one in real.values())
        for one in written:
            real.setdefault(id(one), torch.zeros(tuple(one.shape), dtype=one.dtype))
            forget(one)
        if known:
            fill.func(group, _stand_in(outputs, real), _stand_in(inputs, real), opts)
            for one in written:
                mark_values(one, real[id(one)])


def _real(tensor: torch.Tensor) -> Any:
    found = values_of(tensor) if is_shape(tensor) else tensor
    return None if found is None else found.clone()


def _stand_in(tensors: Any, real: dict[int, Any]) -> Any:
    if isinstance(tensors, torch.Tensor):
        return real[id(tensors)]
    return [_stand_in(one, real) for one in tensors]
