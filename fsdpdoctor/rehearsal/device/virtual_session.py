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

from fsdpdoctor.recorder import session  # whose clocks are replaced below
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.host import stack_sampler
from fsdpdoctor.recorder.host.replica_state import ReplicaWatch
from fsdpdoctor.recorder.memory import memory_step
from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.recorder.storage import memory_samples
from fsdpdoctor.rehearsal import modelled_group, modelled_work
from fsdpdoctor.rehearsal.device import (
    functional_collectives,
    fused_functions,
    host_values,
    known_values,
)
from fsdpdoctor.rehearsal.device.compiled import CompiledRegions
from fsdpdoctor.rehearsal.device.cuda import loaded_storages
from fsdpdoctor.rehearsal.device.cuda.cuda_names import CudaNames
from fsdpdoctor.rehearsal.device.dispatch_mode import DispatchMode
from fsdpdoctor.rehearsal.device.function_mode import (
    FunctionMode,
    as_host_shape,
    record_stream,
    take_over_properties,
)
from fsdpdoctor.rehearsal.device.memory.ledger_source import LedgerSource
from fsdpdoctor.rehearsal.device.memory.memory_places import MemoryPlaces
from fsdpdoctor.rehearsal.device.memory.storages import Ledger, is_shape
from fsdpdoctor.rehearsal.device.op_prices import add_fsdp_prices
from fsdpdoctor.rehearsal.device.placement import Placement
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
    assert session in sys.modules.values()
    ours = [m for n, m in list(sys.modules.items()) if n.startswith("fsdpdoctor.")]
    with ExitStack() as stack:
        stack.callback(_give_back_peaks())
        stack.callback(patches.undo)
        device.clock.take_over(patches, ours)
        CudaNames(device, count).take_over(patches)
        functions.autocast.take_over(patches)
        take_over_properties(patches, placement)
        _take_over_tensors(patches)
        _take_over_fsdp(patches, device, places)
        compiled.take_over(patches)
        fused_functions.take_over(patches)
        loaded_storages.take_over(patches)
        # What it sees of a stack between two virtual moments says nothing.
        patches.put(stack_sampler, "start_thread", lambda run: None)
        # Replicas are copies of this rank, and their numbers are nobody's.
        patches.put(ReplicaWatch, "_sample", lambda watch, step: None)
        patches.put(
            memory_step,
            "source_of",
            lambda live, *_: LedgerSource(ledger, live),
        )
        patches.put(modelled_work, "sleep_until", device.clock.advance_to)
        patches.put(modelled_group, "fill_virtual", known_values.follow_collective)
        stack.enter_context(dispatch)
        stack.enter_context(functions)
        yield Rig(device=device, ledger=ledger, places=places, compiled=compiled)
        device.clock.advance_to(device.times.all_free_ns())


def _give_back_peaks() -> Callable[[], None]:
    """The recorder keeps peaks for good, of one allocator: each device has its own."""
    memory: Any = torch.cuda.memory
    names = ("memory_stats_as_nested_dict", "reset_peak_memory_stats")
    before, kept = (
        {name: getattr(memory, name) for name in names},
        memory_samples._peaks,
    )
    memory_samples._peaks = None

    def give_back() -> None:
        memory_samples._peaks = kept
        for name, function in before.items():
            setattr(memory, name, function)
            setattr(torch.cuda, name, function)

    return give_back


def _take_over_tensors(patches: Patches) -> None:
    resize: Callable[..., Any] = torch.UntypedStorage.resize_
    new: Callable[..., Any] = nn.Parameter.__new__
    group: Callable[..., Any] = torch._C._group_tensors_by_device_and_dtype

    def resize_(storage: Any, size: int) -> Any:
        result = resize(storage, size)
        holding = getattr(storage, "_fsdpdoctor_holding", None)
        if holding is not None and holding.ledger is not None:
            holding.ledger.resize(holding, size)
        return result

    def by_device(lists: Any, with_indices: bool = False) -> Any:
        found = group(lists, with_indices)
        return {
            (_device_of_first(grouped[0], device), dtype): grouped
            for (device, dtype), grouped in found.items()
        }

    def parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) is torch.Tensor:
            with torch._C.DisableTorchFunction():
                if not is_shape(data):
                    data = as_host_shape(data)
        return new(cls, data, requires_grad)

    # `torch.autograd.grad` would step aside for the mode, whose answers its hooks need.
    patches.put(torch.autograd, "has_torch_function", lambda *_: False)
    patches.put(torch.UntypedStorage, "resize_", resize_)
    patches.put(torch._C, "_group_tensors_by_device_and_dtype", by_device)
    patches.put(nn.Parameter, "__new__", staticmethod(parameter))
    patches.put(torch.Tensor, "pin_memory", lambda t, *_: host_values.pin(t))
    patches.put(torch.Tensor, "record_stream", _record_stream)
    patches.put(torch.Tensor, "is_pinned", lambda t, *_: host_values.is_pinned(t))


def _record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Where no function mode is on, as in FSDP1's own."""
    with torch._C.DisableTorchFunction():
        record_stream(tensor, stream)


def _device_of_first(grouped: Any, device: torch.device) -> torch.device:
    """What the script believes of tensors that C++ has grouped by its own belief."""
    lists = grouped if isinstance(grouped[0], list) else [grouped]
    first = next((t for one in lists for t in one if t is not None), None)
    return device if first is None else first.device


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
