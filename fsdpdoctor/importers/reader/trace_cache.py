"""Traces that were read before: their columns, a fiftieth of the file's size.

One file per trace: a JSON line (schema, key, metadata, names, collectives, columns)
and the columns in blocks of rows, each as differences, its bytes sorted by
significance, deflated. Whatever is wrong with a cached file, the trace is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from fsdpdoctor.importers.reader.decoders import default_decoder
from fsdpdoctor.importers.reader.decompress import UNPACK_ERRORS
from fsdpdoctor.importers.reader.read_trace import scan_file
from fsdpdoctor.importers.reader.trace_file import (
    CommArgs,
    Events,
    Health,
    MemoryEvents,
    Ops,
    TraceFile,
)
from fsdpdoctor.schema import Table
from fsdpdoctor.storage.spill import Shelf, blocks, let_go

CACHE_VERSION = 5
"""Of what is cached: raise it when `Events` or what fills it changes."""

TABLES: dict[str, type[Table]] = {
    "events": Events,
    "ops": Ops,
    "memory": MemoryEvents,
}
"""The tables of a `TraceFile`, by field."""

_UNUSABLE: tuple[type[Exception], ...] = (
    *UNPACK_ERRORS,
    ValueError,
    KeyError,
    TypeError,
)

FOLDER_VARIABLE = "FSDPDOCTOR_CACHE"
"""Names the cache's folder; empty turns the cache off."""


def default_folder() -> Path | None:
    """Where traces are cached unless a command says otherwise."""
    said = os.environ.get(FOLDER_VARIABLE)
    if said is not None:
        return Path(said) if said else None
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "fsdpdoctor" / "traces"


def cached_scan(path: Path, folder: Path | None) -> TraceFile:
    """Read a trace, from the cache where the file has not changed since."""
    if folder is None:
        return scan_file(path, default_decoder())
    key = _key(path)
    place = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.trace"
    cached = load(place, key)
    if cached is not None:
        return cached
    trace = scan_file(path, default_decoder())
    save(place, key, trace)
    return trace


def _key(path: Path) -> str:
    try:
        stat = path.stat()
    except OSError:
        return ""  # reading it will say what is wrong
    return json.dumps(
        [CACHE_VERSION, str(path.resolve()), stat.st_size, stat.st_mtime_ns]
    )


def save(place: Path, key: str, trace: TraceFile) -> None:
    """Cache a trace. A cache that cannot be written is none: no error."""
    blobs: list[bytes] = []
    tables: dict[str, dict[str, list[int]]] = {}
    for name in TABLES:
        table: Table = getattr(trace, name)
        tables[name] = {}
        for column, whole in table.items():
            packed = [_pack(whole[block]) for block in blocks(len(whole))]
            tables[name][column] = [len(blob) for blob in packed]
            blobs += packed
            let_go(table)
    head = {
        "key": key,
        "rows": {name: len(getattr(trace, name)) for name in TABLES},
        "tables": tables,
        "metadata": trace.metadata,
        "names": trace.names,
        "comms": [asdict(one) for one in trace.comms],
        "pids": trace.pids,
        "unread": trace.unread,
        "health": asdict(trace.health),
    }
    new = place.with_name(f"{place.name}.{os.getpid()}.new")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with new.open("wb") as file:
            file.write(json.dumps(head).encode() + b"\n")
            file.writelines(blobs)
        new.replace(place)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()


def load(place: Path, key: str) -> TraceFile | None:
    """A cached trace; None where there is none, of this key, whole."""
    try:
        with place.open("rb") as file:
            head = json.loads(file.readline())
            if head["key"] != key:
                return None
            tables = {
                name: _load_table(table, head["tables"][name], head["rows"][name], file)
                for name, table in TABLES.items()
            }
        return TraceFile(
            metadata=head["metadata"],
            names=tuple(head["names"]),
            comms=tuple(CommArgs(**one) for one in head["comms"]),
            **tables,  # type: ignore[arg-type]
            pids=tuple(head["pids"]),
            unread=head["unread"],
            health=Health(**head["health"]),
        )
    except _UNUSABLE:
        return None


def _load_table(
    table: type[Table], sizes: dict[str, list[int]], rows: int, file: BinaryIO
) -> Table:
    shelf = Shelf(table.columns())
    for name, dtype in table.columns().items():
        for size, block in zip(sizes[name], blocks(rows), strict=True):
            column = _unpack(file.read(size), dtype, block.stop - block.start)
            shelf.put([(name, column)])
    return table(**shelf.take())


def _pack(column: npt.NDArray[np.generic]) -> bytes:
    """Differences, the bytes of each significance together, deflated."""
    steps = np.diff(column, prepend=np.zeros(1, dtype=column.dtype))
    planes = steps.view(np.uint8).reshape(-1, column.itemsize).T
    return bytes(isal_zlib.compress(np.ascontiguousarray(planes).tobytes(), level=2))


def _unpack(
    blob: bytes, dtype: np.dtype[np.generic], rows: int
) -> npt.NDArray[np.generic]:
    planes = np.frombuffer(isal_zlib.decompress(blob), dtype=np.uint8)
    steps = np.ascontiguousarray(planes.reshape(dtype.itemsize, rows).T).view(dtype)
    return np.cumsum(steps.reshape(rows), dtype=dtype)
