"""Passes by which torch's pipelines learn the shapes that stages send each other.

Newer torch runs the first micro-batch through every stage for that, forward and
backward, before a schedule's own. Nothing is trained by it: it is no micro-batch.
Which forward it is stands on the call stack; a backward may run on a thread of
autograd's, and is known by the forward before it.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any

_STAGES = "torch.distributed.pipelining.stage"
_FUNCTIONS = ("_forward_metadata_inference", "_shape_inference")
"""Of a stage's class: in torch 2.13, and before."""


class ShapePasses:
    """Trees whose last forward only asked for shapes."""

    def __init__(self) -> None:
        self._trees: set[int] = set()
        self._codes: frozenset[CodeType] | None = None

    def forward(self, tree: int) -> bool:
        """A root's forward begins: whether it is one of those."""
        if _STAGES not in sys.modules:
            return False
        if self._codes is None:
            self._codes = frozenset(_codes(sys.modules[_STAGES]))
        frame = sys._getframe(1)
        while frame.f_code not in self._codes:
            if frame.f_back is None:
                self._trees.discard(tree)
                return False
            frame = frame.f_back
        self._trees.add(tree)
        return True

    def backward(self, tree: int) -> bool:
        """A tree's backward begins: whether it belongs to one of those."""
        return tree in self._trees


def _codes(module: Any) -> list[CodeType]:
    functions = (
        vars(owner)[name]
        for owner in vars(module).values()
        if isinstance(owner, type)
        for name in _FUNCTIONS
        if name in vars(owner)
    )
    return [f.__code__ for f in functions if hasattr(f, "__code__")]
