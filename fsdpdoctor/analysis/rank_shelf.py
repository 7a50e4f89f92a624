"""Measured ranks of a job of any size, in memory that hardly grows with it.

What a rank was reduced to is some hundred kilobytes of columns. Those of many ranks go
to files, a batch of ranks to each, and are mapped. What all ranks say alike (units,
groups, names) is held once. See [Note: Memory that can be taken back].
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.quantities import MIB
from fsdpdoctor.schema import MemoryStep, RankHeader, Table
from fsdpdoctor.storage.spill import (
    Column,
    Columns,
    give_back,
    mappings,
    shelved,
)

BATCH_BYTES = 32 * MIB
"""Of columns, in memory before they go to a file: some 70 ranks of 34 units and 20
steps. A smaller job is read without a file."""

LONG_BYTES = 4096
"""Of a table that goes to the file: of a shorter one a whole page, and with it those
around, would be read for some hundred bytes, and objects that view it are as large."""

AT_A_TIME = 64
"""Ranks whose pages are given back together."""

Item = TypeVar("Item")
_Hashed = TypeVar("_Hashed", bound=Hashable)


class GivenBack(tuple[Item, ...]):
    """Ranks, or parts of them: going through them gives back the pages of those that
    were passed.
    """

    tables_of: Callable[[Item], Iterable[Columns]]
    mapped: dict[int, tuple[mmap.mmap, ...]]
    """By the first of so many ranks. Kept: to find it for each of thousands of ranks
    takes longer than most of what is asked of them, which dozens ask."""

    def __iter__(self) -> Iterator[Item]:
        first = 0
        for at, item in enumerate(super().__iter__()):
            yield item
            if at + 1 - first == AT_A_TIME:
                self._give_back(first, at + 1)
                first = at + 1
        self._give_back(first, len(self))

    def __reduce__(self) -> tuple[type, tuple[tuple[Item, ...]]]:
        """What is sent to another process has its columns with it."""
        return tuple, (tuple(self),)

    def _give_back(self, first: int, last: int) -> None:
        if len(self) < AT_A_TIME or first == last:
            return
        if first not in self.mapped:
            passed = self[first:last]
            tables = (table for item in passed for table in self.tables_of(item))
            self.mapped[first] = mappings(*tables)
        give_back(self.mapped[first])


def given_back(
    items: Iterable[Item], tables_of: Callable[[Item], Iterable[Columns]]
) -> GivenBack[Item]:
    """Some ranks, or parts of them, and which tables these have."""
    found = GivenBack(items)
    found.tables_of = tables_of
    found.mapped = {}
    return found


def tables_of(rank: RankMeasures) -> list[Columns]:
    """Every table of a rank, and its columns that are in none."""
    values = {name: getattr(rank, name) for name in _FIELDS}
    alone = {n: v for n, v in values.items() if isinstance(v, np.ndarray)}
    return [*(v for v in values.values() if isinstance(v, Table)), alone]


def _columns(value: object) -> list[Column]:
    """Those of a table, or a column that is in none; of all else there are none."""
    if isinstance(value, Table):
        return [column for _, column in value.items()]
    return [value] if isinstance(value, np.ndarray) else []


def _is_long(value: object) -> bool:
    return sum(column.nbytes for column in _columns(value)) >= LONG_BYTES


_FIELDS = tuple(field.name for field in fields(RankMeasures))


class RankShelf:
    """Takes measured ranks one by one, and gives all of them back."""

    def __init__(self) -> None:
        self._done: list[RankMeasures] = []
        self._pending: list[RankMeasures] = []
        self._bytes = 0
        self._known: dict[Any, Any] = {}

    def put(self, rank: RankMeasures) -> None:
        """Take a rank."""
        rank = replace(
            rank, header=self._shared(rank.header), names=self._one(rank.names)
        )
        self._pending.append(rank)
        self._bytes += sum(
            column.nbytes for table in tables_of(rank) for _, column in table.items()
        )
        if self._bytes > BATCH_BYTES:
            self._to_file()

    def take(self) -> list[RankMeasures]:
        """All of them, in the order in which they came."""
        if self._done and self._pending:
            self._to_file()
        return [*self._done, *self._pending]

    def _shared(self, header: RankHeader) -> RankHeader:
        return replace(
            header,
            units=self._one(tuple(map(self._one, header.units))),
            groups=self._one(header.groups),
            model=self._one(header.model),
            evidence=self._one(header.evidence),
            replicas=self._one(tuple(map(self._one, header.replicas))),
            memory=self._shared_memory(header.memory),
        )

    def _shared_memory(self, memory: MemoryStep | None) -> MemoryStep | None:
        if memory is None:
            return None
        return replace(
            memory,
            peak=self._one(tuple(map(self._one, memory.peak))),
            units=self._one(tuple(map(self._one, memory.units))),
        )

    def _one(self, value: _Hashed) -> _Hashed:
        found: _Hashed = self._known.setdefault(value, value)
        return found

    def _to_file(self) -> None:
        long = [
            {name: value for name in _FIELDS if _is_long(value := getattr(rank, name))}
            for rank in self._pending
        ]
        columns = [
            column
            for values in long
            for value in values.values()
            for column in _columns(value)
        ]
        mapped = iter(shelved(columns))
        for rank, values in zip(self._pending, long, strict=True):
            changed: dict[str, Any] = {
                name: type(value)(**{n: next(mapped) for n in value.columns()})
                if isinstance(value, Table)
                else next(mapped)
                for name, value in values.items()
            }
            self._done.append(replace(rank, **changed))
        self._pending.clear()
        self._bytes = 0
