"""Which modules' forwards are on the call stack."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from torch import nn

_NAMES = ("_call_impl", "_wrapped_call_impl")  # the second calls the first
_CALLS = tuple(
    getattr(nn.Module, name).__code__ for name in _NAMES if hasattr(nn.Module, name)
)


def outermost_module() -> nn.Module | None:
    """The outermost module whose forward is on the call stack now."""
    found: nn.Module | None = None
    for module in _running():
        found = module
    return found


def forwards_running(module: nn.Module) -> int:
    """How many forwards of one module are on the call stack: two where it calls itself,
    one where its hooks ask.
    """
    return sum(one is module for one in _running(_CALLS[:1]))


def _running(calls: tuple[object, ...] = _CALLS) -> Iterator[nn.Module]:
    """Innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code in calls:
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module):
                yield module
        if frame.f_back is None:
            return
        frame = frame.f_back
