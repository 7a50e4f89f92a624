"""First on PYTHONPATH of a rank: counts what FSDP2 issues, and stands in for a device.

`COUNTS` is the folder for counts. `STAND_IN` names a framework that shards on an
accelerator only, and is told that the CPU is one. `PASTED` is a folder of modules'
sources in which somebody has pasted advice, by module name.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

Then = Callable[[Any], None]


class Loader(importlib.abc.Loader):
    """Another loader, and something after it."""

    def __init__(self, inner: Any, pasted: Path | None, then: Then | None) -> None:
        self.inner, self.pasted, self.then = inner, pasted, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the other one does."""
        made: ModuleType | None = self.inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """What was pasted in its place, where there is something."""
        if self.pasted is None:
            self.inner.exec_module(module)
        else:
            text = self.pasted.read_text("utf-8")
            exec(compile(text, str(self.pasted), "exec"), module.__dict__)
        if self.then is not None:
            self.then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules that something is done to, once each."""

    def __init__(self, after: dict[str, Then], pasted: dict[str, Path]) -> None:
        self.after, self.pasted = after, pasted

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """None for all other modules."""
        then, pasted = self.after.pop(name, None), self.pasted.pop(name, None)
        if then is None and pasted is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None:
            spec.loader = Loader(spec.loader, pasted, then)
        return spec


def counted(_: Any) -> None:
    """FSDP2's own functions are there."""
    from tests.rig import counting

    counting.install(Path(os.environ["COUNTS"]) / f"{os.environ['RANK']}.json")


def accelerate_state(module: Any) -> None:
    """FSDP where a plugin asks for it: on CPU it would be DDP."""
    state = module.AcceleratorState
    original = state.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        fresh = not state._shared_state
        original(self, *args, **kwargs)
        plugin = kwargs.get("fsdp_plugin")
        if not fresh or plugin is None:
            return
        self.distributed_type = module.DistributedType.FSDP
        if self._mixed_precision != "no":
            plugin.set_mixed_precision(self._mixed_precision)
        self.fsdp_plugin = plugin
        shared = module.PartialState._shared_state
        shared["distributed_type"] = module.DistributedType.FSDP

    state.__init__ = init


class CpuModule:
    """What torchtitan asks of `torch.cuda`."""

    def __getattr__(self, name: str) -> Any:
        import torch

        answers: dict[str, Any] = {
            "get_device_name": "cpu",
            "get_device_properties": SimpleNamespace(total_memory=2**34, name="cpu"),
            "memory_stats": {},
            "current_device": 0,
            "device_count": 2,
        }
        if name in answers:
            return lambda *args, **kwargs: answers[name]
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        return lambda *args, **kwargs: None


def torchtitan_tools(module: Any) -> None:
    """Its device is the CPU, where gloo cannot average while it scatters."""
    import torch.distributed as dist
    from torch.distributed.fsdp import FSDPModule

    if not hasattr(dist, "set_timeout"):  # newer than torch 2.13
        newer: Any = dist
        newer.set_timeout = lambda *_, **__: None
    module.device_type, module.device_module = "cpu", CpuModule()
    module.get_device_info = lambda: (module.device_type, module.device_module)
    original = FSDPModule.set_gradient_divide_factor

    def divide(self: Any, factor: float) -> None:
        self.set_force_sum_reduction_for_comms(True)
        original(self, factor)

    owner: Any = FSDPModule
    owner.set_gradient_divide_factor = divide


def torchtitan_attention(module: Any) -> None:
    """Flex attention would be compiled for a device."""
    import torch.nn.functional as F

    def forward(
        self: Any, q: Any, k: Any, v: Any, *, enable_gqa: bool = False, **_: Any
    ) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=enable_gqa
        )
        return y.transpose(1, 2)

    # Its arguments' names are looked up where it is divided.
    names: Any = forward
    names.__signature__ = inspect.signature(module.FlexAttention.forward)
    module.FlexAttention.forward = forward


def torchtune_memory(module: Any) -> None:
    """No allocator to ask."""
    import torch

    cpu: Any = torch.cpu
    cpu.empty_cache = cpu.reset_peak_memory_stats = lambda *_: None
    module.get_memory_stats = lambda *_, **__: {}
    module.log_memory_stats = lambda *_, **__: None


STAND_INS: dict[str, dict[str, Then]] = {
    "accelerate": {"accelerate.state": accelerate_state},
    "torchtitan": {
        "torchtitan.tools.utils": torchtitan_tools,
        "torchtitan.models.common.attention": torchtitan_attention,
    },
    "torchtune": {"torchtune.training.memory": torchtune_memory},
}

if "RANK" in os.environ:
    after = dict(STAND_INS.get(os.environ.get("STAND_IN", ""), {}))
    if "COUNTS" in os.environ:
        after["torch.distributed.fsdp._fully_shard._fsdp_param_group"] = counted
    pasted_in = os.environ.get("PASTED")
    pasted = {} if pasted_in is None else {p.stem: p for p in Path(pasted_in).iterdir()}
    sys.meta_path.insert(0, Finder(after, pasted))
