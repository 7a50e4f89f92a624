"""`torch.compile`: run eagerly, charged as if pointwise operations were fused.

Inside a compiled region, in its forward and in the backward of what it recorded, a
pointwise operation or a reduction is part of a kernel with its neighbours: it reads
only what no such operation of the same region made, and what it makes is written only
where something else reads it, another region too. So an intermediate costs nothing, and
the host pays for kernels alone. A region's backward counts as the same region: what it
needs of the forward's pointwise results is computed again, as partitioning does.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fsdpdoctor.recorder.fsdp2.unit_specs import REHEARSED
from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.rehearsal.device.op_prices import memory_kernel, tensor_bytes
from fsdpdoctor.rehearsal.device.operators import Operator
from fsdpdoctor.rehearsal.device.virtual_device import Kernel, VirtualDevice

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_now: Callable[[], int] = torch._C._autograd._get_sequence_nr
_node: Callable[[], Any] = torch._C._current_autograd_node

_NEVER_FUSED = ("fsdp.", "aten._foreach", "aten._fused", "aten.copy_", "copy")

COMPILED = (
    "torch.compile: compiled regions were run eagerly, and their pointwise operations "
    "were charged as fused into kernels; compiling itself, graph breaks, "
    "recompilations and CUDA graphs are not in these times"
)
"""What a reader of a rehearsal with such regions must know."""


class CompiledRegions:
    """Which operations run in a compiled region, and what they cost there."""

    def __init__(self, device: VirtualDevice) -> None:
        self._device = device
        self._depth = 0
        self._begins: list[int] = []  # sequence numbers of nodes that regions made
        self._ends: list[int] = []
        self._numbers: list[int] = []  # of these regions
        self._entered = 0  # regions, so far
        self._current = 0  # the one that is run now, where there is one
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
                compile_module(model)
                return model
            return regions.region(model)

        def compile_module(module: nn.Module, *_: Any, **__: Any) -> None:
            regions.used = True
            vars(module)[REHEARSED] = True
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
        if not self._depth:
            # Computed again in backward, it is still the region that it was.
            again = None if _graph_task() == -1 else self._of_node()
            self._entered += again is None
            self._current = self._entered if again is None else again
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth and _graph_task() == -1 and _now() > begun:
                self._begins.append(begun)
                self._ends.append(_now())
                self._numbers.append(self._current)

    def _region_now(self) -> int | None:
        """The number of the region that the present operation is in."""
        if self._depth:
            return self._current
        return None if _graph_task() == -1 else self._of_node()

    def _of_node(self) -> int | None:
        """The region whose backward is under way."""
        node = _node() if self._begins else None
        if node is None:
            return None
        number = node._sequence_nr()
        at = bisect_right(self._begins, number) - 1
        inside = at >= 0 and number < self._ends[at]
        return self._numbers[at] if inside else None

    def fused(
        self, operator: Operator, kernel: Kernel, tensors: Any, results: Any
    ) -> Kernel | None:
        """What an operation's kernel costs in a fused one; itself where it is none."""
        if not self.used:
            return kernel
        region = None
        if kernel.kind == "memory" and not operator.name.startswith(_NEVER_FUSED):
            region = self._region_now()
        if region is None:
            self._write(tensors)
            return kernel
        others = [t for t in tensors if getattr(_storage(t), _FUSED, None) != region]
        self._write(others)
        outs = results if isinstance(results, tuple | list) else (results,)
        for out in outs:
            if isinstance(out, torch.Tensor):
                storage = _storage(out)
                setattr(storage, _FUSED, region)
                self._unwritten[storage] = tensor_bytes(out)
        read = sum(map(tensor_bytes, others))
        return self._moved(read, 0) if read else None

    def _write(self, tensors: Any) -> None:
        """What a neighbour alone has read is still to be written for others."""
        written = sum(self._unwritten.pop(_storage(t), 0) for t in tensors)
        if written:
            self._device.launch(self._moved(written), "fused")

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
