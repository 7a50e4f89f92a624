"""Reads a trace once more, whole, into an `EventIndex`'s folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from fsdpdoctor.importers.reader.chunks import Chunk, Framing, chunks
from fsdpdoctor.importers.reader.decode_json import DAMAGED, DecodedRows, rows_of
from fsdpdoctor.importers.reader.decoders import default_decoder
from fsdpdoctor.importers.reader.decompress import open_trace
from fsdpdoctor.importers.reader.event_index import (
    BY_CORRELATION,
    COLUMNS,
    INDEX_VERSION,
    Line,
    Piece,
    write_index,
)
from fsdpdoctor.importers.reader.nesting_depth import depths
from fsdpdoctor.importers.reader.read_trace import read_metadata
from fsdpdoctor.importers.reader.repair import salvage
from fsdpdoctor.importers.reader.trace_file import Cat, Int64s
from fsdpdoctor.schema import NO_TIME, UNKNOWN, is_any
from fsdpdoctor.schema.string_table import StringTable
from fsdpdoctor.storage.spill import Shelf

Progress = Callable[[int], None]
"""Called with how many bytes of the events have been read."""

_GATHERED: dict[str, np.dtype[np.generic]] = {
    **{name: np.dtype(of) for name, of in COLUMNS.items() if name != "row"},
    **{name: np.dtype(np.int64) for name in ("tid", "stream", "device")},
    "row": np.dtype(np.int32),
}

_PREFIX = "events-"

KEPT_INDICES = 128
"""Of ranks' files, in the user's cache: one of 123,000 events takes 8 MB."""


def index_folder(path: Path, cache: Path) -> Path:
    """Where a file's index is kept. Of a file that has changed it is another."""
    stat = path.stat()
    key = f"{INDEX_VERSION}\0{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    return cache / f"{_PREFIX}{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def build_index(path: Path, folder: Path, progress: Progress = lambda _: None) -> None:
    """Put a file's index into a folder, whole or not at all. Raises InputError where
    the file cannot be read, OSError where nothing can be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        with (new / "texts.bin").open("wb") as texts:
            gathered = _gather(path, texts, progress)
        columns, lines = _laid_out(gathered.columns)
        said: dict[str, Any] = {
            "lines": lines,
            "names": gathered.names.all,
            "separator": gathered.separator.decode("latin-1"),
            "pieces": gathered.pieces,
        }
        write_index(new, columns, said)
        with contextlib.suppress(OSError):  # another process was there first
            new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    _forget_oldest(folder)


def _forget_oldest(folder: Path) -> None:
    os.utime(folder)
    kept = [path for path in folder.parent.glob(f"{_PREFIX}*") if path.is_dir()]
    by_age = sorted(kept, key=lambda path: path.stat().st_mtime, reverse=True)
    for path in by_age[KEPT_INDICES:]:
        shutil.rmtree(path, ignore_errors=True)


class _Gathered:
    """The rows of a file as they come."""

    def __init__(self, texts: BinaryIO) -> None:
        self.names = StringTable()
        self.pieces: list[Piece] = []
        self.separator = b""
        self.columns: dict[str, npt.NDArray[Any]] = {}
        self._texts = texts
        self._decode = default_decoder(every_op=True)
        self._shelf = Shelf(_GATHERED)
        self._rows = 0

    def add(self, chunk: Chunk, separator: bytes) -> bytes | None:
        """Take a chunk's rows; what follows the events, where they end in it."""
        rows, tail = self._decoded(chunk, separator)
        self.pieces.append(
            Piece(
                at=self._texts.tell(),
                length=self._texts.write(isal_zlib.compress(chunk.text, level=1)),
                first_row=self._rows,
                ends_file=chunk.last,
            )
        )
        start, duration = rows.start_ns, rows.duration_ns
        sound = (start != NO_TIME) & (duration != NO_TIME) & (duration >= 0)
        sound &= rows.cat != Cat.CAPTURE  # of the profiler, not of the script
        at = np.flatnonzero(sound)
        columns = {**rows._asdict(), "row": np.arange(len(sound)) + self._rows}
        self._shelf.put((name, columns[name][at]) for name in _GATHERED)
        self._rows += len(sound)
        return tail

    def _decoded(
        self, chunk: Chunk, separator: bytes
    ) -> tuple[DecodedRows, bytes | None]:
        if not chunk.last:
            try:
                return self._decode(chunk.text, self.names), None
            except DAMAGED:
                pass
        found = salvage(chunk, separator)
        times = (
            np.array([row[1] for row in found.rows], dtype=np.int64),
            np.array([row[2] for row in found.rows], dtype=np.int64),
        )
        kept = [row[0] for row in found.rows]
        rows = rows_of(kept, found.events, times, self.names, found.unread)
        return rows, found.tail

    def finish(self, separator: bytes, base_ns: int) -> None:
        """All is read."""
        self.separator = separator
        self.columns = self._shelf.take()
        self.columns["start_ns"] = self.columns["start_ns"] + base_ns


def _gather(path: Path, texts: BinaryIO, progress: Progress) -> _Gathered:
    framing = Framing()
    found = _Gathered(texts)
    tail: bytes | None = None
    with open_trace(path) as file:
        for chunk in chunks(file, framing):
            if tail is None:
                tail = found.add(chunk, framing.separator)
            else:
                tail += chunk.text  # keys after the events, larger than a block
            progress(framing.size)
    base = read_metadata(framing.head, tail or b"").get("baseTimeNanoseconds")
    sound = isinstance(base, int) and 0 < base < 2**62
    found.finish(framing.separator, base if sound and isinstance(base, int) else 0)
    return found


def _laid_out(
    found: dict[str, npt.NDArray[Any]],
) -> tuple[dict[str, npt.NDArray[Any]], list[Line]]:
    """The columns by line and start, and the lines."""
    on_device = is_any(found["cat"], Cat.KERNEL, Cat.MEMCPY, Cat.MEMSET)
    stream = np.where(found["stream"] == UNKNOWN, found["tid"], found["stream"])
    place = np.where(on_device, stream, found["tid"])
    device = np.where(on_device, found["device"], 0)
    keys = (-found["duration_ns"], found["start_ns"], place, device, on_device)
    order = np.lexsort(keys)
    depth = np.empty(len(order), dtype=np.int64)
    for here in _groups(on_device[order], device[order], place[order]):
        rows = order[here]
        start = found["start_ns"][rows]
        depth[rows] = depths(start, start + found["duration_ns"][rows])
    order = np.lexsort((found["start_ns"], depth, place, device, on_device))
    columns = {name: found[name][order].astype(of) for name, of in COLUMNS.items()}
    parts = (on_device[order], device[order], place[order], depth[order])
    lines = [
        Line(
            device=int(parts[1][here.start]) if parts[0][here.start] else None,
            id=int(parts[2][here.start]),
            depth=int(parts[3][here.start]),
            first=here.start,
            last=here.stop,
        )
        for here in _groups(*parts)
    ]
    known = np.flatnonzero(columns["correlation"] >= 0)
    ids = columns["correlation"][known]
    columns[BY_CORRELATION] = known[np.argsort(ids, kind="stable")].astype(np.int32)
    return columns, lines


def _groups(*keys: Int64s | npt.NDArray[np.bool_]) -> list[slice]:
    """Runs of rows whose keys are equal."""
    if not len(keys[0]):
        return []
    new = np.zeros(len(keys[0]), dtype=np.bool_)
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    edges = [0, *np.flatnonzero(new).tolist(), len(new)]
    return [slice(a, b) for a, b in pairwise(edges)]
