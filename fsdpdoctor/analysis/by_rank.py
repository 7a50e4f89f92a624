"""What is known of each rank, made when it is asked for.

A job of thousands of ranks has gigabytes of columns that say something of each
collective of each rank; whoever reads them does so a rank at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LastOf(Generic[Value]):
    """A function of a rank that remembers its last answer: of one rank several things
    are asked in a row.
    """

    def __init__(self, make: Callable[[int], Value]) -> None:
        self._make = make
        self._last: tuple[int, Value] | None = None

    def __call__(self, rank: int) -> Value:
        last = self._last
        if last is None or last[0] != rank:
            last = self._last = (rank, self._make(rank))
        return last[1]


class ByRank(Mapping[int, Value]):
    """Some ranks, and what a function says of each."""

    def __init__(self, ranks: Collection[int], make: Callable[[int], Value]) -> None:
        self._ranks = ranks
        self._make = make

    def __getitem__(self, rank: int) -> Value:
        if rank not in self._ranks:
            raise KeyError(rank)
        return self._make(rank)

    def __reduce__(self) -> tuple[type, tuple[dict[int, Value]]]:
        """What is sent to another process is made for all."""
        return dict, (dict(self),)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)
