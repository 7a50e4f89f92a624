"""One rank's part of a store: its marks, series by series, and its tables.

Columns stay where they are, mapped or in memory, until something of them is asked.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import NO_TIME, MemorySamples, Spans, Table
from fsdpdoctor_dashboard.data.slices import Exposed, Marks, Track


class Area(NamedTuple):
    """What one series of one rank did within a stretch of time."""

    rank: int
    series: int
    busy_ns: int
    started: int  # spans that began in it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """The marks of one series of one rank; times from the store's origin on."""

    rank: int
    series: int  # index in SERIES
    start: npt.NDArray[np.int64]  # [M]
    length: npt.NDArray[np.integer]  # [M], positive
    total: npt.NDArray[np.int64]  # [M] the lengths of all marks before
    span: npt.NDArray[np.int32]  # [M]
    unit: npt.NDArray[np.int32]  # [M]
    starts: npt.NDArray[np.int64]  # [C], ascending
    # Of `start`: for one moment `bisect` takes a third of what `searchsorted` does,
    # and one number of a view of `length` a third of what its array takes.
    _sorted: memoryview = field(init=False, repr=False)
    _lengths: memoryview = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sorted", self.start.data)
        object.__setattr__(self, "_lengths", self.length.data)

    def busy_until(self, times: Int64s) -> Int64s:
        """The time that the marks cover before each of some moments."""
        if len(self.start) == 0:
            return np.zeros(len(times), dtype=np.int64)
        # In place, for a tile asks this of a hundred series: before the first mark
        # its own row stands in, of which nothing has passed.
        row = self.start.searchsorted(times, "right")
        row -= 1
        np.maximum(row, 0, out=row)
        covered = times - self.start.take(row)
        np.minimum(covered, self.length.take(row), out=covered)
        np.maximum(covered, 0, out=covered)
        covered += self.total.take(row)
        return covered

    def busy(self, edges: Int64s) -> Int64s:
        """The covered time between neighbouring edges."""
        covered = self.busy_until(edges)
        return covered[1:] - covered[:-1]

    def between(self, t0: int, t1: int) -> slice:
        """The marks that reach into `[t0, t1)`."""
        marks = self._sorted
        low = bisect_right(marks, t0)
        if low and marks[low - 1] + self._lengths[low - 1] > t0:
            low -= 1
        return slice(low, bisect_left(marks, t1, low))

    def area(self, t0: int, t1: int) -> Area:
        """Busy time and count within `[t0, t1)`."""
        edges = np.array([t0, t1], dtype=np.int64)
        first, last = np.searchsorted(self.starts, edges, "left").tolist()
        return Area(self.rank, self.series, int(self.busy(edges)[0]), last - first)


class Packed(NamedTuple):
    """A table in as few bytes as its values need, and how to read them."""

    columns: dict[str, npt.NDArray[np.generic]]
    constants: dict[str, int]
    offsets: dict[str, int]


class RankTable:
    """A table of one rank whose columns stay on disk until a row is asked for."""

    def __init__(self, packed: Packed, length: int) -> None:
        self.packed = packed
        self._length = length

    def __len__(self) -> int:
        return self._length

    def column(self, name: str) -> Int64s:
        """One whole column, as whole numbers."""
        if name in self.packed.constants:
            return np.full(self._length, self.packed.constants[name], dtype=np.int64)
        offset = self.packed.offsets[name]
        values = self.packed.columns[name].astype(np.int64) + (offset - 1)
        # Zero stands for "not said", and any other number for itself less offset - 1.
        return np.where(values == offset - 1, _ABSENT, values)

    def value(self, name: str, row: int) -> int | None:
        """One value, None where the source did not say."""
        if name in self.packed.constants:
            constant = self.packed.constants[name]
            return None if constant == _ABSENT else constant
        stored = int(self.packed.columns[name][row])
        return None if stored == 0 else stored + self.packed.offsets[name] - 1


_ABSENT = int(NO_TIME)


def _pack(table: Table, absent: dict[str, int]) -> Packed:
    columns: dict[str, npt.NDArray[np.generic]] = {}
    constants: dict[str, int] = {}
    offsets: dict[str, int] = {}
    for name in table.columns():
        values = getattr(table, name).astype(np.int64)
        said = values != absent.get(name, _ABSENT)
        if not said.any():
            constants[name] = _ABSENT
            continue
        low, high = int(values[said].min()), int(values[said].max())
        if low == high and said.all():
            constants[name] = low
            continue
        dtype = np.min_scalar_type(high - low + 1)
        columns[name] = np.where(said, values - low + 1, 0).astype(dtype)
        offsets[name] = low
    return Packed(columns, constants, offsets)


class RankPart(NamedTuple):
    """All that a store has of one rank."""

    series: tuple[Series, ...]  # in the order of SERIES
    tables: Mapping[str, RankTable]  # by name in TABLES

    @property
    def end(self) -> int | None:
        """When its last mark ends; None: it has none."""
        ends = [
            int(s.start[-1]) + int(s.length[-1]) for s in self.series if len(s.start)
        ]
        return max(ends, default=None)

    @property
    def first(self) -> int | None:
        """When the first of the spans behind its marks begins."""
        return min(
            (int(s.starts[0]) for s in self.series if len(s.starts)), default=None
        )


def part_of(track: Track, marks: Mapping[int, Marks], origin_ns: int) -> RankPart:
    """What a rank's track and its marks come to, in times from an origin on."""
    return RankPart(
        series=tuple(
            _shifted(track.rank, index, marks[index], origin_ns)
            for index in sorted(marks)
        ),
        tables={
            name: _packed(getattr(track, name), table) for name, table in TABLES.items()
        },
    )


TABLES: dict[str, type[Table]] = {
    "spans": Spans,
    "exposed": Exposed,
    "memory": MemorySamples,
}
"""The columns of `Track` that are kept row by row."""

# Kinds, lanes, phases and flags have no "not said": their zero is a value.
_WHOLE = ("kind", "lane", "phase", "flags")


def _packed(table: Table, of: type[Table]) -> RankTable:
    fields = of.__dataclass_fields__
    absent = {
        name: int(fields[name].metadata["absent"])
        for name in of.columns()
        if name not in _WHOLE
    }
    return RankTable(_pack(table, absent), len(table))


def _shifted(rank: int, index: int, marks: Marks, origin: int) -> Series:
    length = marks.end_ns - marks.start_ns
    return Series(
        rank=rank,
        series=index,
        start=marks.start_ns - origin,
        length=length.astype(
            np.uint32 if length.max(initial=0) < 1 << 32 else np.int64
        ),
        total=np.cumsum(length) - length,
        span=marks.span,
        unit=marks.unit,
        starts=marks.starts_ns - origin,
    )
