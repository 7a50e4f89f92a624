"""The marks of a whole run, as few plain columns that can be mapped into memory.

[Note: Exact at every zoom]
Each series carries the running total of its marks' lengths. The busy time up to
any moment is then one binary search, and that of any stretch a difference: whole
nanoseconds, at every level, without a mark ever being merged with its neighbour
in the record. Level-of-detail tiles (see `tiles`) are made from these totals on
request; what a level shows adds up to what the analysis says by construction,
and a tile costs the same for 10 thousand spans and for 10 million.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.reader.trace_cache import default_folder
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import NO_TIME, MemorySamples, Spans, Table
from fsdpdoctor.version import __version__
from fsdpdoctor_dashboard.data.slices import (
    Exposed,
    Marks,
    RankFacts,
    RankNames,
    Track,
    marks_of,
)

STORE_VERSION = 5
"""Of the cached columns. A store of another version is made anew."""

_COLUMNS = ("start", "length", "total", "span", "unit", "starts")


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


class Store:
    """All ranks' marks, spans and memory samples, read-only."""

    def __init__(
        self,
        *,
        fingerprint: str,
        origin_ns: int,
        series: Sequence[Series],
        tables: Mapping[str, Mapping[int, RankTable]],
        names: Mapping[int, RankNames],
        facts: Mapping[int, RankFacts],
    ) -> None:
        self.fingerprint = fingerprint
        self.origin_ns = origin_ns
        self.spans = tables["spans"]
        self.exposed = tables["exposed"]
        self.memory = tables["memory"]
        self.names = names
        self.facts = facts
        self.ranks = tuple(sorted(self.spans))
        self._series = {(s.rank, s.series): s for s in series}
        self._of_rank: dict[int, list[Series]] = {rank: [] for rank in self.ranks}
        for _, found in sorted(self._series.items()):
            self._of_rank[found.rank].append(found)
        ends = [int(s.start[-1]) + int(s.length[-1]) for s in series if len(s.start)]
        self.end = max(ends, default=1)

    def series(self, rank: int) -> Sequence[Series]:
        """The series of a rank, in the order of SERIES."""
        return self._of_rank.get(rank, [])

    def one(self, rank: int, series: int) -> Series | None:
        """One series, None where the rank has no such mark."""
        return self._series.get((rank, series))

    def area(self, t0: int, t1: int, ranks: Iterable[int]) -> list[Area]:
        """What each series of some ranks did within `[t0, t1)`."""
        return [s.area(t0, t1) for rank in ranks for s in self.series(rank)]


def build_store(tracks: Iterable[Track], fingerprint: str) -> Store:
    """The store of some ranks, in memory."""
    found: dict[int, dict[int, Marks]] = {}
    tables: dict[str, dict[int, RankTable]] = {name: {} for name in _TABLES}
    names: dict[int, RankNames] = {}
    facts: dict[int, RankFacts] = {}
    for track in tracks:
        found[track.rank] = marks_of(track)
        names[track.rank], facts[track.rank] = track.names, track.facts
        for name, table in _TABLES.items():
            tables[name][track.rank] = _packed(getattr(track, name), table)
    firsts = [
        int(marks.starts_ns[0])
        for of_rank in found.values()
        for marks in of_rank.values()
        if len(marks.starts_ns)
    ]
    origin = min(firsts, default=0)
    return Store(
        fingerprint=fingerprint,
        origin_ns=origin,
        series=[
            _shifted(rank, index, marks, origin)
            for rank, of_rank in found.items()
            for index, marks in sorted(of_rank.items())
        ],
        tables=tables,
        names=names,
        facts=facts,
    )


_TABLES: dict[str, type[Table]] = {
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


def fingerprint_of(paths: Iterable[Path]) -> str:
    """Names, sizes and times of the files that a run is read from, and our version:
    a store holds what the analysis said.
    """
    digest = hashlib.sha256(f"timeline {STORE_VERSION} {__version__}".encode())
    for path in sorted(paths):
        stat = path.stat()
        digest.update(f"\0{path}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:20]


def save_store(store: Store, folder: Path) -> None:
    """Put a store's columns into a folder, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        _write(store, new)
        if not folder.exists():
            new.rename(folder)
    finally:
        if new.exists():
            shutil.rmtree(new, ignore_errors=True)


# One file for all columns: a mapping holds a file open, and a run of 64 ranks has
# thousands of columns, more than a process may hold files.
# Written by hand, for it is mapped: safetensors and Arrow's readers copy each column
# (22 MB of 300,000 spans), and that took them 12 and 25 times as long to open.
_CONTENT = "columns.bin"
_ALIGNMENT = 64


class _Columns:
    """Columns on their way into one file, and where each of them begins."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.places: dict[str, tuple[int, int, str]] = {}

    def add(self, name: str, values: npt.NDArray[np.generic]) -> None:
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        self.places[name] = (self._file.tell(), len(values), values.dtype.str)
        self._file.write(np.ascontiguousarray(values).data)


def _write(store: Store, folder: Path) -> None:
    series = [s for rank in store.ranks for s in store.series(rank)]
    tables: dict[str, dict[str, object]] = {}
    with (folder / _CONTENT).open("wb") as file:
        columns = _Columns(file)
        for name in _COLUMNS:
            parts = [getattr(s, name) for s in series]
            whole = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
            columns.add(name, whole)
        for kind in _TABLES:
            for rank, table in getattr(store, kind).items():
                packed = table.packed
                for name, values in packed.columns.items():
                    columns.add(f"{kind}-{rank}-{name}", values)
                tables[f"{kind}-{rank}"] = {
                    "length": len(table),
                    "columns": list(packed.columns),
                    "constants": packed.constants,
                    "offsets": packed.offsets,
                }
    index = {
        "version": STORE_VERSION,
        "fingerprint": store.fingerprint,
        "origin_ns": store.origin_ns,
        "series": [(s.rank, s.series, len(s.start), len(s.starts)) for s in series],
        "ranks": store.ranks,
        "tables": tables,
        "places": columns.places,
        "names": [astuple(store.names[rank]) for rank in store.ranks],
        "facts": [asdict(store.facts[rank]) for rank in store.ranks],
    }
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")


def open_store(folder: Path) -> Store | None:
    """Map a saved store, None where there is none that this version reads."""
    try:
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        if index["version"] != STORE_VERSION:
            return None
        os.utime(folder)  # used now, so not the next to be forgotten
        mapped = np.memmap(folder / _CONTENT, mode="r").view(np.ndarray)
        found = {
            name: _column(mapped, *place) for name, place in index["places"].items()
        }
        columns = {name: found[name] for name in _COLUMNS}
        tables = {
            kind: {
                rank: _table(found, key, index["tables"][key])
                for rank in index["ranks"]
                if (key := f"{kind}-{rank}")
            }
            for kind in _TABLES
        }
        names = [
            RankNames(units=tuple(units), groups=tuple(groups), names=tuple(others))
            for units, groups, others in index["names"]
        ]
        facts = [RankFacts(**told) for told in index["facts"]]
    except (OSError, EOFError, ValueError, KeyError):
        return None  # half written, or damaged: it is only a cache
    series: list[Series] = []
    mark, start = 0, 0
    for rank, number, marks, starts in index["series"]:
        here = {n: columns[n][mark : mark + marks] for n in _COLUMNS[:-1]}
        here["starts"] = columns["starts"][start : start + starts]
        series.append(Series(rank=rank, series=number, **here))
        mark, start = mark + marks, start + starts
    return Store(
        fingerprint=index["fingerprint"],
        origin_ns=index["origin_ns"],
        series=series,
        tables=tables,
        names=dict(zip(index["ranks"], names, strict=True)),
        facts=dict(zip(index["ranks"], facts, strict=True)),
    )


def _column(
    mapped: npt.NDArray[np.uint8], at: int, length: int, dtype: str
) -> npt.NDArray[Any]:
    size = length * np.dtype(dtype).itemsize
    if at + size > len(mapped):
        raise ValueError("the file is shorter than its index says")
    return mapped[at : at + size].view(dtype)


def _table(
    found: dict[str, npt.NDArray[Any]], key: str, told: dict[str, Any]
) -> RankTable:
    columns: dict[str, npt.NDArray[np.generic]] = {
        name: found[f"{key}-{name}"] for name in told["columns"]
    }
    return RankTable(
        Packed(columns, told["constants"], told["offsets"]), told["length"]
    )


def cache_folder(fingerprint: str) -> Path | None:
    """Where a run's store is kept: the user's cache, never the run's own folder.

    None where the user wants no cache.
    """
    folder = default_folder()
    return None if folder is None else folder / f"{_PREFIX}{fingerprint}"


_PREFIX = "timeline-"

KEPT_STORES = 24
"""Stores in the user's cache; one of a million spans takes 80 MB."""


def forget_oldest(folder: Path) -> None:
    """Delete the stores beside `folder` that were used longest ago."""
    stores = [path for path in folder.parent.glob(f"{_PREFIX}*") if path.is_dir()]
    by_age = sorted(stores, key=lambda path: path.stat().st_mtime, reverse=True)
    for path in by_age[KEPT_STORES:]:
        shutil.rmtree(path, ignore_errors=True)
