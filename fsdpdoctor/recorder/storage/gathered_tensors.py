"""Whole tensors that `full_tensor()` and other redistributions of DTensors gathered,
as long as somebody holds them.

A gather's output is the tensor itself where it was sharded over rows, as FSDP2 does.
Only references that keep nothing alive are held here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

LEAST_BYTES = 1 << 14
"""Smaller ones are numbers and norms: many, and no memory."""


class _Made(NamedTuple):
    storage: Any  # a StorageWeakRef, which torch has not annotated
    size: int
    where: str


class GatheredTensors:
    """Those that are alive, and where they were made."""

    def __init__(self) -> None:
        self._reference: Any = StorageWeakRef
        self._made: list[_Made] = []

    def add(self, tensors: Iterable[torch.Tensor], where: str) -> None:
        """A gather into these was issued."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            size = storage.nbytes()
            if size >= LEAST_BYTES:
                self._made.append(_Made(self._reference(storage), size, where))

    def clear(self) -> None:
        """Recording stops: what was made is not followed any more."""
        self._made = []

    def size(self) -> int:
        """Bytes that are alive now."""
        return sum(self.by_place().values()) if self._made else 0

    def by_place(self) -> Counter[str]:
        """The same, by where they were made."""
        self._made = [one for one in self._made if not one.storage.expired()]
        found: Counter[str] = Counter()
        for one in self._made:
            found[one.where] += one.size
        return found
