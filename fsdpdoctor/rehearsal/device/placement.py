"""Where the tensor that is made now shall be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto


class Place(Enum):
    """Of a tensor that is a shape only."""

    DEVICE = auto()
    HOST = auto()


@dataclass(slots=True, kw_only=True)
class Placement:
    """What the call of torch's that runs now was told."""

    target: Place | None = None  # None: where its arguments are
    free: bool = False  # nothing is charged: a wrapper charges it as one kernel

    depth: int = 0  # of operators that run: torch's own code wants C++'s answers

    @contextmanager
    def beneath(self) -> Iterator[None]:
        """An operator runs."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @contextmanager
    def above(self) -> Iterator[None]:
        """What stands for a collective: it asks where tensors are, as a script does."""
        before, self.depth = self.depth, 0
        try:
            yield
        finally:
            self.depth = before

    @contextmanager
    def to(self, place: Place | None) -> Iterator[None]:
        """A call with a device."""
        before, self.target = self.target, place
        try:
            yield
        finally:
            self.target = before

    @contextmanager
    def uncharged(self) -> Iterator[None]:
        """Calls that are part of another."""
        before, self.free = self.free, True
        try:
            yield
        finally:
            self.free = before
