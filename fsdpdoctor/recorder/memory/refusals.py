"""When a step is not counted, because counting could change what is trained.

A dispatch mode returns what torch returned; but torch itself does a few things
otherwise under any mode. Tried on each operator of which torch 2.13 has samples, in
float32 on CPU, forward and backward, under a mode that does nothing and without: the
derivatives of `prod`, and of `masked_fill` for its value, are other sums. Compiled code
is not run under a mode, and attention's fast path in evaluation neither.
"""

from __future__ import annotations

import gc
import itertools
import sys
from typing import Any, Final

import torch
from torch import nn

from fsdpdoctor.recorder.border import let_through
from fsdpdoctor.recorder.host.dynamo_counters import compile_counts

_aten: Any = torch.ops.aten

_ASKED_OF: Final = {
    **dict.fromkeys((_aten.prod.default, _aten.prod.dim_int), 0),
    **dict.fromkeys((_aten.cumprod.default, _aten.cumprod_.default), 0),
    **dict.fromkeys((_aten.masked_fill.Tensor, _aten.masked_fill_.Tensor), 2),
}
"""Whose derivatives are other sums under a mode, if this argument has one."""

_FAST_IN_EVALUATION = (nn.MultiheadAttention, nn.TransformerEncoderLayer)

OWN_MODE = "a mode of the script's own is on"
COMPILED = "code of torch.compile runs, which a mode would keep from running"
FAST_PATH = (
    "attention in evaluation mode takes another path in torch while storages are seen"
)
DERIVATIVE = "torch computes the derivative of {} otherwise while storages are seen"


def refusal() -> str | None:
    """Why nothing is counted in this process; None: it may be."""
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return OWN_MODE
    if _compiles():
        return COMPILED
    return None


def must_wait() -> bool:
    """Whether somebody captures this step: another one will do."""
    profiled: bool = torch._C._autograd._profiler_enabled()
    return profiled


def changes_derivative(func: Any, args: Any) -> str | None:
    """The name of an operator whose derivative would be another under a mode."""
    place = _ASKED_OF.get(func)
    if place is None:
        return None
    asked = args[place]
    if isinstance(asked, torch.Tensor) and asked.requires_grad:
        return str(func.overloadpacket.__name__)
    return None


def _compiles() -> bool:
    """Whether `torch.compile` has been called, for something that runs or will."""
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    # By a number of its own; None where dynamo was told to leave something alone.
    backends = getattr(frames, "cached_backends", None) or {}
    called = any(backend is not None for backend in backends.values())
    return called or compile_counts() is not None


_LOOKED_FOR = (torch.Tensor, *_FAST_IN_EVALUATION)


class _Kinds(dict[type, bool]):
    """Whether objects of a type are looked for, asked once of each."""

    def __missing__(self, kind: type) -> bool:
        found = self[kind] = issubclass(kind, _LOOKED_FOR)
        return found


def tensors_alive() -> tuple[list[torch.Tensor], bool]:
    """All tensors that Python knows, and whether some attention is in evaluation
    mode.
    """
    found = _looked_for(gc.get_objects())
    tensors = [one for one in found if issubclass(type(one), torch.Tensor)]
    evaluated = any(
        not one.training for one in found if issubclass(type(one), _FAST_IN_EVALUATION)
    )
    return tensors, evaluated


def _looked_for(objects: list[Any]) -> list[Any]:
    """By type: an object's `__class__` may be anybody's code."""
    try:
        # In C alone: there are a few hundred thousand, and a training waits.
        wanted = map(_Kinds().__getitem__, map(type, objects))
        return list(itertools.compress(objects, wanted))
    except Exception as error:  # somebody's class has a hash of its own, which raises
        let_through(error)
        return [one for one in objects if issubclass(type(one), _LOOKED_FOR)]
