"""Tells an optimizer of the script's own from gradients that accumulate.

Nothing of torch says that such an optimizer steps. What it leaves is that the
gradients of one backward are gone, or its parameters changed, before those of the
next are added.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

SAMPLED = 8
"""So many parameters are looked at, of as many units: some may have been left alone."""


class _Seen(NamedTuple):
    param: weakref.ref[Any]
    grad: weakref.ref[Any]
    versions: tuple[int, ...]

    def used(self) -> bool:
        param, grad = self.param(), self.grad()
        if param is None:
            return False
        return (
            grad is None or param.grad is not grad or _versions(param) != self.versions
        )


class GradientsUsed:
    """A few gradients as a backward left them."""

    def __init__(self) -> None:
        self._seen: list[_Seen] = []

    def remember(self, params: Iterable[Any]) -> None:
        """A backward has ended: look at some of its parameters."""
        self._seen = []
        for param in params:
            if param.requires_grad and param.grad is not None:
                self._seen.append(
                    _Seen(weakref.ref(param), weakref.ref(param.grad), _versions(param))
                )
            if len(self._seen) == SAMPLED:
                return

    def forget(self) -> None:
        """They are of a step that is over."""
        self._seen = []

    def used(self) -> bool:
        """Whether somebody has used them since."""
        return any(seen.used() for seen in self._seen)


def _versions(param: Any) -> tuple[int, ...]:
    """What changes where somebody writes in place. FSDP2 adds to the shard of a
    gradient, autograd to a plain gradient itself, which says nothing then.
    """
    shard = getattr(param, "_local_tensor", None)
    if shard is None:
        return (param._version,)
    return param._version, shard._version, param.grad._version
