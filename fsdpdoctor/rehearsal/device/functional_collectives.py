"""Collectives that DTensor asks for by the name of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import _resolve_process_group

from fsdpdoctor.rehearsal.device import operators
from fsdpdoctor.rehearsal.device.memory.storages import is_shape, on_device
from fsdpdoctor.rehearsal.modelled_group import FUNCTIONAL

if TYPE_CHECKING:
    from fsdpdoctor.rehearsal.device.dispatch_mode import DispatchMode

_WAITS = ("wait_tensor", "_wrap_tensor_autograd")
"""The second, of newer torch, is a tensor that waits where it is used first: nearly
always at once, so that it waits at once here.
"""
_DONE = "_fsdpdoctor_done"


def register(mode: DispatchMode) -> None:
    """Tell the mode which operators are collectives."""
    found = _Collectives(mode)
    for namespace in ("_c10d_functional", "_c10d_functional_autograd"):
        operators_of: Any = getattr(torch.ops, namespace)
        for name in (*FUNCTIONAL, *_WAITS):
            packet = getattr(operators_of, name, None)
            if packet is not None:
                does = found.wait if name in _WAITS else found.issue
                mode.special[packet.default] = does


class _Collectives:
    def __init__(self, mode: DispatchMode) -> None:
        self._mode = mode

    def issue(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Shapes as ever; the wire says how long it takes."""
        with self._mode.placement.uncharged():
            results = self._mode.run(func, args, kwargs)
        group: Any = _resolve_process_group(args[-1])
        given = operators.tensors_of(args, kwargs)
        outs = operators.flat_results(results)
        with self._mode.placement.above():
            done = group.fsdpdoctor_functional(func._opname, outs, given)
        for out in outs:
            if is_shape(out) and on_device(out):
                setattr(torch.Tensor.untyped_storage(out), _DONE, done)
        return results

    def wait(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The stream waits, as for any collective."""
        storage: Any = torch.Tensor.untyped_storage(args[0])
        done = storage.__dict__.pop(_DONE, None)
        if done is not None:
            done.wait()
        return args[0]
