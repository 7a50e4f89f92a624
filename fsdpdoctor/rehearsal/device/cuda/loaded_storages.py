"""`torch.load` onto the device: C++ of a build without CUDA has no such storages.

A storage that is to be there stays on the host and is marked; the tensors that are made
of it are copied to the device, as a checkpoint's would be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fsdpdoctor.recorder.patching import Patches

_TENSORS = "_fsdpdoctor_tensors"
"""Of a marked storage: those that were made of it, by their place in it."""


def take_over(patches: Patches) -> None:
    """Answer where storages of files go."""
    serialization: Any = torch.serialization
    restore: Callable[..., Any] = serialization.default_restore_location
    rebuild: Callable[..., Any] = torch._utils._rebuild_tensor

    def default_restore_location(storage: Any, location: Any) -> Any:
        if str(location).startswith("cuda"):
            return _marked(storage)
        return restore(storage, location)

    def rebuild_tensor(storage: Any, offset: int, size: Any, stride: Any) -> Any:
        marked = getattr(storage._untyped_storage, _TENSORS, None)
        if marked is None:
            return rebuild(storage, offset, size, stride)
        place = (storage.dtype, offset, tuple(size), tuple(stride))
        if place not in marked:
            marked[place] = rebuild(storage, offset, size, stride).to("cuda")
        return marked[place].detach()

    patches.put(serialization, "default_restore_location", default_restore_location)
    patches.put(torch._utils, "_rebuild_tensor", rebuild_tensor)
    patches.put(torch.UntypedStorage, "cuda", _cuda)


def _marked(storage: Any) -> Any:
    if not hasattr(storage, _TENSORS):
        setattr(storage, _TENSORS, {})
    return storage


def _cuda(storage: Any, device: Any = None, non_blocking: bool = False) -> Any:
    """What a script's own `map_location` calls."""
    return _marked(storage)
