"""All events of a trace file, laid out so that a stretch of them is found at once.

[Note: Every event of a trace] The analysis keeps few of a trace's operators and no
arguments. Whoever opens a lane of the timeline asks for all of them, of a narrow
stretch, again and again. Reading the file for each question costs its whole length
(0.15 s for 54 MB of JSON, 6 s for 2 GB), so that it is read once more, when a lane is
first opened, and kept beside what else is cached: 34 bytes an event in columns that
are mapped, and the events' text packed in pieces, of which one is unpacked for one
event's arguments. Nobody who opens no lane pays for it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from fsdpdoctor.importers.reader.chunks import Chunk
from fsdpdoctor.importers.reader.decode_json import DAMAGED, kept_texts
from fsdpdoctor.importers.reader.repair import salvage
from fsdpdoctor.importers.reader.trace_file import Cat, Int64s

INDEX_VERSION = 1
"""Of the folder's content. An index of another version is made anew."""

COLUMNS: dict[str, type[np.generic]] = {
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "correlation": np.int64,
    "row": np.int32,
    "name": np.int32,
    "cat": np.int8,
}
"""Of each event. `row` is its place among the rows of the file."""

BY_CORRELATION = "by_correlation"
"""The events that have a correlation, ascending by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The events of one thread or stream at one depth: none overlaps another."""

    device: int | None  # None: of the host
    id: int  # a thread's, or a stream's
    depth: int
    first: int  # its events are those from `first` on, until `last`
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Where the text of some of the file's rows lies."""

    at: int
    length: int
    first_row: int
    ends_file: bool  # what follows the events may be in it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventIndex:
    """A trace file's events, line by line, each line by start."""

    start_ns: npt.NDArray[np.int64]  # on the file's own clock, base time included
    duration_ns: npt.NDArray[np.int64]
    correlation: npt.NDArray[np.int64]
    row: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]
    cat: npt.NDArray[np.int8]
    by_correlation: npt.NDArray[np.int32]
    lines: tuple[Line, ...]  # those of a thread or stream together, by depth
    names: tuple[str, ...]
    separator: bytes
    pieces: tuple[Piece, ...]
    texts: Path

    def __len__(self) -> int:
        return len(self.start_ns)

    def line_of(self, event: int) -> Line:
        """The line that an event is on."""
        return next(line for line in self.lines if line.first <= event < line.last)

    def between(self, line: Line, t0: int, t1: int) -> slice:
        """The events of a line that reach into `[t0, t1)`."""
        starts = self.start_ns[line.first : line.last]
        low, high = np.searchsorted(starts, [t0, t1]).tolist()
        before = line.first + low - 1
        if low and self.start_ns[before] + self.duration_ns[before] > t0:
            low -= 1
        return slice(line.first + low, line.first + max(low, high))

    def around(self, event: int) -> list[int]:
        """The events that an event is within, the outermost first."""
        own, at = self.line_of(event), int(self.start_ns[event])
        found: list[int] = []
        for line in self.lines:
            here = (line.device, line.id) == (own.device, own.id)
            if not here or line.depth >= own.depth:
                continue
            last = int(
                np.searchsorted(self.start_ns[line.first : line.last], at, "right")
            )
            before = line.first + last - 1
            if last and self.start_ns[before] + self.duration_ns[before] > at:
                found.append(before)
        return found

    def correlated(self, event: int) -> list[int]:
        """The other events of its correlation: of a kernel its launch, and of a launch
        what it launched.
        """
        wanted = int(self.correlation[event])
        if wanted < 0:
            return []
        ids = _Correlations(self)
        first, last = ids.find(wanted)
        return [e for e in self.by_correlation[first:last].tolist() if e != event]

    def named(self, names: npt.NDArray[np.bool_]) -> Int64s:
        """The events of some names, by a mask over `names`, in the index's order."""
        return np.flatnonzero(names[self.name]) if len(self) else np.empty(0, np.int64)

    def arguments(self, event: int) -> Mapping[str, Any]:
        """What the file says of an event beside its name and time."""
        row = int(self.row[event])
        firsts = [piece.first_row for piece in self.pieces]
        at = int(np.searchsorted(firsts, row, "right")) - 1
        texts = _texts(self.texts, self.pieces[at], self.separator)
        event_said = json.loads(texts[row - firsts[at]], strict=False)
        said = event_said.get("args")
        return said if isinstance(said, dict) else {}


class _Correlations:
    """An index's correlations, as a sorted sequence that is never made whole."""

    def __init__(self, index: EventIndex) -> None:
        self._index = index

    def find(self, wanted: int) -> tuple[int, int]:
        return self._before(wanted), self._before(wanted + 1)

    def _before(self, wanted: int) -> int:
        low, high = 0, len(self._index.by_correlation)
        while low < high:
            middle = (low + high) // 2
            event = self._index.by_correlation[middle]
            if self._index.correlation[event] < wanted:
                low = middle + 1
            else:
                high = middle
        return low


@functools.lru_cache(maxsize=2)
def _texts(path: Path, piece: Piece, separator: bytes) -> list[bytes]:
    """The text of the rows of a piece: one after the other is looked at."""
    with path.open("rb") as file:
        file.seek(piece.at)
        text = bytes(isal_zlib.decompress(file.read(piece.length)))
    if not piece.ends_file:
        try:
            return kept_texts(text)
        except DAMAGED:
            pass
    return salvage(Chunk(offset=0, text=text, last=piece.ends_file), separator).texts


def open_index(folder: Path) -> EventIndex | None:
    """Map an index; None where there is none, whole, of this version."""
    try:
        told = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        if told["version"] != INDEX_VERSION:
            return None
        content = folder / "columns.bin"
        mapped: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        if content.stat().st_size:
            mapped = np.memmap(content, mode="r").view(np.ndarray)
        columns: dict[str, Any] = {}
        for name, (at, length, dtype) in told["places"].items():
            size = length * np.dtype(dtype).itemsize
            if at + size > len(mapped):
                return None
            columns[name] = mapped[at : at + size].view(dtype)
        return EventIndex(
            **columns,
            lines=tuple(Line(**line) for line in told["lines"]),
            names=tuple(told["names"]),
            separator=told["separator"].encode("latin-1"),
            pieces=tuple(Piece(**piece) for piece in told["pieces"]),
            texts=folder / "texts.bin",
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # half written, or damaged: it is only a cache


def write_index(
    folder: Path, columns: Mapping[str, npt.NDArray[np.generic]], said: dict[str, Any]
) -> None:
    """Write what `open_index` maps, but for the texts, which are there."""
    places: dict[str, tuple[int, int, str]] = {}
    with (folder / "columns.bin").open("wb") as file:
        for name, values in columns.items():
            file.write(bytes(-file.tell() % 8))
            places[name] = (file.tell(), len(values), values.dtype.str)
            file.write(np.ascontiguousarray(values).data)
    index = {
        "version": INDEX_VERSION,
        "places": places,
        **said,
        "lines": [asdict(line) for line in said["lines"]],
        "pieces": [asdict(piece) for piece in said["pieces"]],
    }
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")


def host_event(cat: int) -> bool:
    """Whether an event ran on the host, and not on a device."""
    return cat not in (Cat.KERNEL, Cat.MEMCPY, Cat.MEMSET)
