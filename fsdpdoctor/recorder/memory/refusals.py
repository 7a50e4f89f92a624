"""When a step is not counted, because counting could change what is trained.

A dispatch mode returns what torch returned; but torch itself does a few things
otherwise under any mode. Tried on each operator of which torch 2.13 has samples, in
float32 on CPU, forward and backward, under a mode that does nothing and without: the
derivatives of `prod`, and of `masked_fill` for its value, are other sums. Compiled code
is not run under a mode, and attention's fast path in evaluation neither.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch
from torch import nn

from fsdpdoctor.recorder.host.dynamo_counters import compile_counts

_aten: Any = torch.ops.aten

_OF_FIRST = {
    _aten.prod.default,
    _aten.prod.dim_int,
    _aten.cumprod.default,
    _aten.cumprod_.default,
}
_OF_VALUE = {_aten.masked_fill.Tensor, _aten.masked_fill_.Tensor}
"""Whose derivatives are other sums under a mode, by the argument that has one."""

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
    if func in _OF_FIRST:
        asked = args[0]
    elif func in _OF_VALUE:
        asked = args[2]
    else:
        return None
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


def tensors_alive() -> tuple[list[torch.Tensor], bool]:
    """All tensors that Python knows, and whether some attention is in evaluation
    mode.
    """
    found: list[torch.Tensor] = []
    evaluated = False
    for one in gc.get_objects():
        kind = type(one)  # not its `__class__`, which may be anybody's code
        if issubclass(kind, torch.Tensor):
            found.append(one)
        elif issubclass(kind, _FAST_IN_EVALUATION):
            evaluated = evaluated or not one.training
    return found, evaluated
