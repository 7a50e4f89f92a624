"""`torch.compile`: run eagerly, charged as if pointwise operations were fused.

Inside a compiled region, in its forward and in the backward of what it recorded, a
pointwise operation or a reduction is part of a kernel with its neighbours: it reads
only what no such operation made, and what it makes is written only where something
else reads it. So an intermediate costs nothing, and the host pays for kernels alone.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.rehearsal.device.op_prices import memory_kernel, tensor_bytes
from fsdpdoctor.rehearsal.device.operators import Operator
from fsdpdoctor.rehearsal.device.virtual_device import Kernel, VirtualDevice

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_now: Callable[[], int] = torch._C._autograd._get_sequence_nr
_node: Callable[[], Any] = torch._C._current_autograd_node

_NEVER_FUSED = ("fsdp.", "aten._foreach", "aten._fused", "aten.copy_", "copy")


class CompiledRegions:
    """Which operations run in a compiled region, and what they cost there."""

    def __init__(self, device: VirtualDevice) -> None:
        self._device = device
        self._depth = 0
        self._begins: list[int] = []  # sequence numbers of nodes that regions made
        self._ends: list[int] = []
        self._unwritten: weakref.WeakKeyDictionary[Any, int] = (
            weakref.WeakKeyDictionary()
        )
        self.used = False

    def take_over(self, patches: Patches) -> None:
        """Put ours in the place of `torch.compile` and `nn.Module.compile`."""
        regions = self

        def compile(model: Any = None, **_: Any) -> Any:
            if model is None:
                return lambda found: compile(found)
            regions.used = True
            if isinstance(model, nn.Module):
                model.forward = regions.region(model.forward)
                return model
            return regions.region(model)

        def compile_module(module: nn.Module, *_: Any, **__: Any) -> None:
            regions.used = True
            module.forward = regions.region(module.forward)

        patches.put(torch, "compile", compile)
        patches.put(nn.Module, "compile", compile_module)

    def region(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose operations are fused."""

        def compiled(*args: Any, **kwargs: Any) -> Any:
            with self._inside():
                return function(*args, **kwargs)

        return compiled

    @contextmanager
    def _inside(self) -> Iterator[None]:
        begun = _now()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth and _graph_task() == -1 and _now() > begun:
                self._begins.append(begun)
                self._ends.append(_now())

    def _compiled_now(self) -> bool:
        if self._depth:
            return True
        if not self._begins or _graph_task() == -1:
            return False
        node = _node()
        if node is None:
            return False
        number = node._sequence_nr()
        at = bisect_right(self._begins, number) - 1
        return at >= 0 and number < self._ends[at]

    def fused(
        self, operator: Operator, kernel: Kernel, tensors: Any, results: Any
    ) -> Kernel | None:
        """What an operation's kernel costs in a fused one; itself where it is none."""
        if not self.used:
            return kernel
        fuses = (
            kernel.kind == "memory"
            and not operator.name.startswith(_NEVER_FUSED)
            and self._compiled_now()
        )
        if not fuses:
            # What a neighbour alone has read is still to be written for others.
            written = sum(self._unwritten.pop(_storage(t), 0) for t in tensors)
            if written:
                self._device.launch(self._moved(written), "fused")
            return kernel
        read = 0
        outs = results if isinstance(results, tuple | list) else (results,)
        for tensor in tensors:
            if not getattr(_storage(tensor), _FUSED, False):
                read += tensor_bytes(tensor)
        for out in outs:
            if isinstance(out, torch.Tensor):
                storage = _storage(out)
                setattr(storage, _FUSED, True)
                self._unwritten[storage] = tensor_bytes(out)
        return self._moved(read, 0) if read else None

    def _moved(self, moved: int, start_us: float | None = None) -> Kernel:
        kernel = memory_kernel(self._device.spec, moved)
        if start_us is None:
            return kernel
        # A part of a kernel: no start of its own.
        own = round(self._device.spec.kernel_us * 1e3)
        return Kernel(length_ns=max(kernel.length_ns - own, 0), kind="memory")


_FUSED = "_fsdpdoctor_fused"


def _storage(tensor: torch.Tensor) -> Any:
    return torch.Tensor.untyped_storage(tensor)
