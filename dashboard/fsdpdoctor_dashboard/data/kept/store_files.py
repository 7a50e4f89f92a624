"""A store on disk: a section for each rank, which is mapped when the rank is looked at.

A job of thousands of ranks has gigabytes of marks and tables. They are written a rank
at a time, and what opening them takes is an index of some hundred bytes a rank.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.reader.trace_cache import default_folder
from fsdpdoctor.storage.spill import give_back
from fsdpdoctor_dashboard.data.rank_series import (
    TABLES,
    Packed,
    RankPart,
    RankTable,
    Series,
)
from fsdpdoctor_dashboard.data.slices import RankFacts, RankNames

STORE_VERSION = 7
"""Of the cached columns. A store of another version is made anew."""

KEPT_PARTS = 256
"""Ranks whose columns stay looked up: a screen shows some hundred lines. What is kept
of each is 30 kB of views; the columns are in the file."""

_COLUMNS = ("start", "length", "total", "span", "unit", "starts")
_TIMES = ("start", "starts")
"""Of these, what counts from the store's origin on."""

# One file for all columns: a mapping holds a file open, and a run of 64 ranks has
# thousands of columns, more than a process may hold files.
# Written by hand, for it is mapped: safetensors and Arrow's readers copy each column
# (22 MB of 300,000 spans), and that took them 12 and 25 times as long to open.
_CONTENT = "columns.bin"
_INDEX = "index.json"
_ALIGNMENT = 64


class Section(NamedTuple):
    """One rank's columns in a row, and what it takes to read them."""

    content: bytes
    head: bytes  # JSON
    times: tuple[tuple[int, int], ...]  # where whole columns of times begin, and rows
    first: int | None  # the earliest of them that counts
    end: int | None


def section_of(part: RankPart) -> Section:
    """A rank's part as it is written."""
    columns = _Columns()
    for name in _COLUMNS:
        parts = [getattr(series, name) for series in part.series]
        columns.add(name, np.concatenate(parts) if parts else np.empty(0, np.int64))
    tables = {}
    for kind, table in part.tables.items():
        packed = table.packed
        for name, values in packed.columns.items():
            columns.add(f"{kind}-{name}", values)
        tables[kind] = {
            "length": len(table),
            "columns": list(packed.columns),
            "constants": packed.constants,
            "offsets": packed.offsets,
        }
    head = {
        "series": [(s.series, len(s.start), len(s.starts)) for s in part.series],
        "columns": columns.places,
        "tables": tables,
    }
    return Section(
        content=b"".join(columns.pieces),
        head=json.dumps(head).encode(),
        times=tuple(columns.places[name][:2] for name in _TIMES),
        first=part.first,
        end=part.end,
    )


class _Columns:
    """Columns in a row, and where each of them begins."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.places: dict[str, tuple[int, int, str]] = {}
        self._at = 0

    def add(self, name: str, values: npt.NDArray[np.generic]) -> None:
        self.places[name] = (self._at, len(values), values.dtype.str)
        for piece in (values.tobytes(), bytes(-values.nbytes % _ALIGNMENT)):
            self.pieces.append(piece)
            self._at += len(piece)


class Writer:
    """Writes the ranks of a store, one after the other."""

    def __init__(self, file: BinaryIO, base_ns: int) -> None:
        self._file = file
        self._base_ns = base_ns  # what the sections count from
        self._sections: dict[int, tuple[int, int, int]] = {}
        self._times: list[tuple[int, int]] = []
        self._names: dict[RankNames, int] = {}
        self._name_of: list[int] = []
        self._facts: list[dict[str, Any]] = []
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def add(
        self, rank: int, section: Section, names: RankNames, facts: RankFacts
    ) -> None:
        """The next rank."""
        at = self._file.tell()
        self._file.write(section.content)
        self._file.write(section.head)
        self._file.write(bytes(-len(section.head) % _ALIGNMENT))
        self._sections[rank] = (at, at + len(section.content), len(section.head))
        self._times += [(at + place, rows) for place, rows in section.times]
        self._name_of.append(self._names.setdefault(names, len(self._names)))
        self._facts.append(asdict(facts))
        self._firsts += [] if section.first is None else [section.first]
        self._ends += [] if section.end is None else [section.end]

    def index(self, fingerprint: str) -> dict[str, Any]:
        """What is said of the ranks together, once all are written: their times count
        from the first mark of all on then.
        """
        self._file.write(bytes(_ALIGNMENT))  # a file without a byte cannot be mapped
        self._file.flush()
        moved = min(self._firsts, default=0)
        if moved:
            self._move(moved)
        return {
            "version": STORE_VERSION,
            "fingerprint": fingerprint,
            "origin_ns": self._base_ns + moved,
            "end": max(self._ends, default=1 + moved) - moved,
            "size": self._file.tell(),
            "ranks": list(self._sections),
            "sections": list(self._sections.values()),
            "names": [astuple(names) for names in self._names],
            "name_of": self._name_of,
            "facts": self._facts,
        }

    def _move(self, moved: int) -> None:
        """Let times count from a later moment on. Nobody knows the first mark of all
        ranks before the last of them is laid out.
        """
        for at, rows in self._times:
            self._file.seek(at)
            times = np.frombuffer(self._file.read(8 * rows), dtype=np.int64)
            self._file.seek(at)
            self._file.write((times - moved).tobytes())
        self._file.seek(0, os.SEEK_END)


@contextmanager
def saving(folder: Path, fingerprint: str, base_ns: int) -> Iterator[Writer]:
    """Write a store's sections into a folder, which is there whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        with (new / _CONTENT).open("w+b") as file:
            writer = Writer(file, base_ns)
            yield writer
            index = writer.index(fingerprint)
        (new / _INDEX).write_text(json.dumps(index), encoding="utf-8")
        if not folder.exists():
            new.rename(folder)
    finally:
        if new.exists():
            shutil.rmtree(new, ignore_errors=True)


class Mapped(NamedTuple):
    """A store's folder, mapped."""

    fingerprint: str
    origin_ns: int
    end: int
    parts: Mapping[int, RankPart]
    names: Mapping[int, RankNames]
    facts: Mapping[int, RankFacts]


def map_store(folder: Path) -> Mapped | None:
    """What a folder holds, None where there is nothing that this version reads."""
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        if index["version"] != STORE_VERSION:
            return None
        os.utime(folder)  # used now, so not the next to be forgotten
        with (folder / _CONTENT).open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(content) < index["size"]:
            return None
        ranks: list[int] = index["ranks"]
        known = [
            RankNames(
                units=tuple(units),
                groups=tuple(groups),
                names=tuple(others),
                recorded=tuple(recorded),
            )
            for units, groups, others, recorded in index["names"]
        ]
        return Mapped(
            fingerprint=index["fingerprint"],
            origin_ns=index["origin_ns"],
            end=index["end"],
            parts=_Parts(content, dict(zip(ranks, index["sections"], strict=True))),
            names={
                rank: known[at]
                for rank, at in zip(ranks, index["name_of"], strict=True)
            },
            facts={
                rank: RankFacts(**told)
                for rank, told in zip(ranks, index["facts"], strict=True)
            },
        )
    except (OSError, EOFError, ValueError, KeyError, IndexError):
        return None  # half written, or damaged: it is only a cache


class _Parts(Mapping[int, RankPart]):
    """The ranks of a mapped file; those that were asked for last stay looked up."""

    def __init__(
        self, mapped: mmap.mmap, sections: dict[int, tuple[int, int, int]]
    ) -> None:
        self._mapped = mapped
        self._content = np.frombuffer(mapped, dtype=np.uint8)
        self._sections = sections
        self._kept: OrderedDict[int, RankPart] = OrderedDict()
        self._passed = 0
        self._lock = threading.Lock()

    def __getitem__(self, rank: int) -> RankPart:
        with self._lock:
            part = self._kept.get(rank)
            if part is None:
                part = self._kept[rank] = self._open(rank)
                if len(self._kept) > KEPT_PARTS:
                    self._kept.popitem(last=False)
                    self._pass_by()
            else:
                self._kept.move_to_end(rank)
            return part

    def __contains__(self, rank: object) -> bool:
        return rank in self._sections

    def __iter__(self) -> Iterator[int]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)

    def _pass_by(self) -> None:
        """Who goes through all ranks leaves their pages behind: they are given back
        from time to time, and found again where they are still looked at.
        """
        self._passed += 1
        if self._passed == KEPT_PARTS:
            self._passed = 0
            give_back((self._mapped,))

    def _open(self, rank: int) -> RankPart:
        at, head_at, head_length = self._sections[rank]
        head = json.loads(self._content[head_at : head_at + head_length].tobytes())
        found = {
            name: self._column(at, *place) for name, place in head["columns"].items()
        }
        series: list[Series] = []
        mark, start = 0, 0
        for number, marks, starts in head["series"]:
            here = {n: found[n][mark : mark + marks] for n in _COLUMNS[:-1]}
            here["starts"] = found["starts"][start : start + starts]
            series.append(Series(rank=rank, series=number, **here))
            mark, start = mark + marks, start + starts
        tables = {kind: _table(found, kind, head["tables"][kind]) for kind in TABLES}
        return RankPart(tuple(series), tables)

    def _column(
        self, section: int, at: int, length: int, dtype: str
    ) -> npt.NDArray[Any]:
        begin = section + at
        end = begin + length * np.dtype(dtype).itemsize
        return self._content[begin:end].view(dtype)


def _table(
    found: dict[str, npt.NDArray[Any]], kind: str, told: dict[str, Any]
) -> RankTable:
    columns: dict[str, npt.NDArray[np.generic]] = {
        name: found[f"{kind}-{name}"] for name in told["columns"]
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

KEPT_BYTES = 16 << 30
"""Of all of them: one of 4,096 ranks takes 6 GB."""


def forget_oldest(folder: Path) -> None:
    """Delete the stores beside `folder` that were used longest ago."""
    stores = [path for path in folder.parent.glob(f"{_PREFIX}*") if path.is_dir()]
    by_age = sorted(stores, key=lambda path: path.stat().st_mtime, reverse=True)
    kept, taken = 0, 0
    for path in by_age:
        taken += sum(file.stat().st_size for file in path.iterdir())
        if kept >= KEPT_STORES or (kept and taken > KEPT_BYTES):
            shutil.rmtree(path, ignore_errors=True)
        else:
            kept += 1
