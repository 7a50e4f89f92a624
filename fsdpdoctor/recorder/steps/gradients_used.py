"""Tells an optimizer of the script's own from gradients that accumulate.

Nothing of torch says that such an optimizer steps. What it leaves is that the
gradients of one backward are gone, or its parameters changed, before those of the
next are added.

No parameter and no gradient of FSDP2's is referred to, not even weakly: torch swaps
their contents in `model.to()`, and refuses that where anything does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

SAMPLED = 8
"""So many parameters are looked at, of as many units: some may have been left alone."""


class _Seen(NamedTuple):
    param: int  # its id
    grad: int  # its id
    grad_is_there: weakref.ref[Any]  # to what it wraps: another may get its id
    versions: tuple[int, ...]

    def used(self, param: Any) -> bool:
        return (
            self.grad_is_there() is None
            or id(param.grad) != self.grad
            or _versions(param) != self.versions
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
                grad = param.grad
                inside = weakref.ref(getattr(grad, "_local_tensor", grad))
                self._seen.append(_Seen(id(param), id(grad), inside, _versions(param)))
            if len(self._seen) == SAMPLED:
                return

    def forget(self) -> None:
        """They are of a step that is over."""
        self._seen = []

    def used(self, params: Iterable[Any]) -> bool:
        """Whether somebody has used them since, those of the same parameters."""
        left = {seen.param: seen for seen in self._seen}
        for param in params if left else ():
            seen = left.pop(id(param), None)
            if seen is not None and seen.used(param):
                return True
            if not left:
                break
        return False


def _versions(param: Any) -> tuple[int, ...]:
    """What changes where somebody writes in place. FSDP2 adds to the shard of a
    gradient, autograd to a plain gradient itself, which says nothing then.
    """
    shard = getattr(param, "_local_tensor", None)
    if shard is None:
        return (param._version,)
    return param._version, shard._version, param.grad._version
