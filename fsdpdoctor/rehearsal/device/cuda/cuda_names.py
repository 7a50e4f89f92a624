"""`torch.cuda` and `torch.accelerator` of the virtual device."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from fsdpdoctor.recorder.host.host_hooks import user_line
from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.rehearsal.device.cuda.memory_names import MemoryNames
from fsdpdoctor.rehearsal.device.cuda.stream_types import Types
from fsdpdoctor.rehearsal.device.virtual_device import DEFAULT_STREAM, VirtualDevice

Function = Callable[..., Any]


_MEMORY = (
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
)


def _as_cuda_has(name: str) -> Function:
    """A function of `torch.cuda`, as it is when it is called."""
    return lambda *_, **__: getattr(torch.cuda, name)()


_NVTX = ("range_push", "range_pop", "mark", "range_start", "range_end")


class CudaNames:
    """Functions by the names that `torch.cuda` has them under."""

    def __init__(self, device: VirtualDevice, count: int) -> None:
        self._device = device
        self._count = count
        self._types = Types(device)
        self._memory = MemoryNames(device)
        self._state = torch.zeros(16, dtype=torch.uint8)  # of the random generator

    def take_over(self, patches: Patches) -> None:
        """Put them in the place of torch's own."""
        cuda: Any = torch.cuda
        memory, types = self._memory.functions(), self._types.by_name()
        places: list[tuple[Any, dict[str, Any]]] = [
            (cuda, self._of_cuda() | memory | types | self._of_random()),
            (cuda.memory, memory),
            (cuda.streams, types),
            (torch, types),
            (cuda.random, self._of_random()),
            (getattr(torch, "accelerator", None), self._of_accelerator()),
            (torch._C, {"_get_accelerator": lambda *_: torch.device("cuda")}),
            (cuda.nvtx, {name: _no_op() for name in _NVTX}),
        ]
        for owner, names in places:
            for name, function in names.items():
                if hasattr(owner, name):
                    patches.put(owner, name, function)

    def _of_cuda(self) -> dict[str, Function]:
        device, types = self._device, self._types
        return {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "init": _no_op(),
            "_lazy_init": _no_op(),
            "_lazy_call": lambda function, **_: None,
            "device_count": lambda: self._count,
            "current_device": lambda: 0,
            "set_device": _no_op(),
            "_exchange_device": lambda index: 0,
            "_maybe_exchange_device": lambda index: 0,
            "get_device_name": lambda *_: device.spec.name,
            "get_device_capability": lambda *_: device.spec.capability,
            "get_device_properties": lambda *_: self._properties(),
            "is_bf16_supported": lambda *_, **__: device.spec.capability >= (8, 0),
            "is_tf32_supported": lambda: device.spec.capability >= (8, 0),
            "can_device_access_peer": lambda *_: True,
            "get_arch_list": lambda: ["sm_{}{}".format(*device.spec.capability)],
            "synchronize": lambda *_, **__: device.synchronize(user_line()),
            "ipc_collect": _no_op(),
            "current_stream": lambda *_, **__: types.stream(device.current),
            "default_stream": lambda *_, **__: types.stream(DEFAULT_STREAM),
            "set_stream": self._set_stream,
            "stream": types.context,
            "StreamContext": types.context,
            "device": _DeviceContext,
            "device_of": _DeviceContext,
            "is_current_stream_capturing": lambda: False,
            "_sleep": self._sleep,
            "utilization": lambda *_: 100,
            "_get_generator": lambda *_: torch.default_generator,
        }

    def _of_random(self) -> dict[str, Function]:
        def set_rng_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
            self._state = state

        return {
            "manual_seed": _no_op(),
            "manual_seed_all": _no_op(),
            "seed": _no_op(),
            "seed_all": _no_op(),
            "initial_seed": lambda: 0,
            "get_rng_state": lambda *_, **__: self._state.clone(),
            "get_rng_state_all": lambda: [self._state.clone()] * self._count,
            "set_rng_state": set_rng_state,
            "set_rng_state_all": _no_op(),
            "_get_rng_state_offset": lambda *_, **__: 0,
            "_set_rng_state_offset": _no_op(),
        }

    def _of_accelerator(self) -> dict[str, Function]:
        device, of_cuda = self._device, self._of_cuda()
        memory = self._memory.functions()
        return {
            "is_available": lambda: True,
            "device_count": of_cuda["device_count"],
            "current_accelerator": lambda *_, **__: torch.device("cuda"),
            "current_device_index": lambda: 0,
            "current_device_idx": lambda: 0,
            "set_device_index": _no_op(),
            "set_device_idx": _no_op(),
            "device_index": _DeviceContext,
            "current_stream": of_cuda["current_stream"],
            "set_stream": self._set_stream,
            "synchronize": of_cuda["synchronize"],
            "get_device_capability": lambda *_: {"supported_dtypes": set()},
            "get_memory_info": memory["mem_get_info"],
            **{name: _as_cuda_has(name) for name in _MEMORY},
            "empty_host_cache": lambda: device.charge_host(0),
        }

    def _set_stream(self, stream: Any) -> None:
        if stream is not None:
            self._device.current = stream.number

    def _sleep(self, cycles: int) -> None:
        """A cycle is a nanosecond here."""
        self._device.times.run(self._device.current, int(cycles), "sleep")

    def _properties(self) -> Any:
        spec = self._device.spec
        return SimpleNamespace(
            name=spec.name,
            major=spec.capability[0],
            minor=spec.capability[1],
            total_memory=spec.memory_bytes,
            multi_processor_count=spec.sms,
            max_threads_per_multi_processor=2048,
            warp_size=32,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=49152,
            shared_memory_per_block_optin=232448,
            shared_memory_per_multiprocessor=233472,
            L2_cache_size=50 << 20,
            is_integrated=False,
            is_multi_gpu_board=False,
            gcnArchName="",
            uuid="virtual",
        )


class _DeviceContext:
    """`torch.cuda.device`: there is one."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.idx, self.prev_idx = 0, -1

    def __enter__(self) -> _DeviceContext:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _no_op() -> Function:
    """For what has no meaning on a device that is not there. A function each: tables
    of dynamo's refuse one under several names.
    """
    return lambda *_, **__: None
