"""Everything of the script's process that has to know the device, put in place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo  # before its tables meet what replaces functions of torch
import torch.distributed.fsdp
from torch import nn

import fsdpdoctor.recorder.session  # whose clocks are replaced below
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.host import stack_sampler
from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.rehearsal import modelled_work
from fsdpdoctor.rehearsal.device import functional_collectives, host_values
from fsdpdoctor.rehearsal.device.compiled import CompiledRegions
from fsdpdoctor.rehearsal.device.cuda_names import CudaNames
from fsdpdoctor.rehearsal.device.dispatch_mode import DispatchMode
from fsdpdoctor.rehearsal.device.function_mode import (
    FunctionMode,
    as_host_shape,
    take_over_properties,
)
from fsdpdoctor.rehearsal.device.memory_places import MemoryPlaces
from fsdpdoctor.rehearsal.device.op_prices import add_fsdp_prices
from fsdpdoctor.rehearsal.device.placement import Placement
from fsdpdoctor.rehearsal.device.storages import Ledger, is_shape
from fsdpdoctor.rehearsal.device.virtual_device import VirtualDevice

_HOOKS = (
    "unshard",
    "wait_for_unshard",
    "pre_forward",
    "post_forward",
    "pre_backward",
    "post_backward",
    "reshard",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """What a rehearsal on a device is made of."""

    device: VirtualDevice
    ledger: Ledger
    places: MemoryPlaces
    compiled: CompiledRegions


@contextmanager
def on_device(device: VirtualDevice, count: int = 8) -> Iterator[Rig]:
    """While it is open, this process has `count` such devices, and is on the first."""
    ledger, placement, patches = Ledger(device), Placement(), Patches()
    add_fsdp_prices()
    dispatch = DispatchMode(device, ledger, placement)
    functions = FunctionMode(placement)
    functional_collectives.register(dispatch)
    compiled = CompiledRegions(device)
    dispatch.fused = compiled.fused
    places = MemoryPlaces(ledger)
    ours = [m for n, m in list(sys.modules.items()) if n.startswith("fsdpdoctor.")]
    with ExitStack() as stack:
        stack.callback(patches.undo)
        device.clock.take_over(patches, ours)
        CudaNames(device, count).take_over(patches)
        functions.autocast.take_over(patches)
        take_over_properties(patches, placement)
        _take_over_tensors(patches)
        _take_over_fsdp(patches, device, places)
        compiled.take_over(patches)
        # What it sees of a stack between two virtual moments says nothing.
        patches.put(stack_sampler, "start_thread", lambda run: None)
        patches.put(modelled_work, "sleep_until", device.clock.advance_to)
        stack.enter_context(dispatch)
        stack.enter_context(functions)
        yield Rig(device=device, ledger=ledger, places=places, compiled=compiled)
        device.clock.advance_to(device.times.all_free_ns())


def _take_over_tensors(patches: Patches) -> None:
    resize: Callable[..., Any] = torch.UntypedStorage.resize_
    new: Callable[..., Any] = nn.Parameter.__new__

    def resize_(storage: Any, size: int) -> Any:
        result = resize(storage, size)
        holding = getattr(storage, "_fsdpdoctor_holding", None)
        if holding is not None and holding.ledger is not None:
            holding.ledger.resize(holding, size)
        return result

    def parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) is torch.Tensor:
            with torch._C.DisableTorchFunction():
                if not is_shape(data):
                    data = as_host_shape(data)
        return new(cls, data, requires_grad)

    # `torch.autograd.grad` would step aside for the mode, whose answers its hooks need.
    patches.put(torch.autograd, "has_torch_function", lambda *_: False)
    patches.put(torch.UntypedStorage, "resize_", resize_)
    patches.put(nn.Parameter, "__new__", staticmethod(parameter))
    patches.put(torch.Tensor, "pin_memory", lambda t, *_: host_values.pin(t))
    patches.put(torch.Tensor, "is_pinned", lambda t, *_: host_values.is_pinned(t))


def _take_over_fsdp(
    patches: Patches, device: VirtualDevice, places: MemoryPlaces
) -> None:
    """Hooks cost the host what they cost."""
    group_class = internals.TorchSymbols().group_class
    if group_class is None:
        return

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        name = original.__name__

        def hook(group: Any, *args: Any, **kwargs: Any) -> Any:
            host = device.host
            device.charge_host(host.hook_ns + host.param_ns * len(group.fsdp_params))
            with places.in_hook(name, group):
                return original(group, *args, **kwargs)

        return hook

    for name in _HOOKS:
        if hasattr(group_class, name):
            patches.wrap(group_class, name, wrap)


__all__ = ["Rig", "fsdpdoctor", "on_device"]
