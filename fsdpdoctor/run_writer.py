"""Writes the files of a run. The recorder uses it, so: numpy and nanoarrow only.

See [Note: A run on disk] in `schema`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import nanoarrow as na
import numpy as np
from nanoarrow.ipc import StreamWriter

from fsdpdoctor.schema import (
    HEARTBEAT,
    HEARTBEAT_SLOTS,
    CallSites,
    Counters,
    MemorySamples,
    RankHeader,
    RunHeader,
    Spans,
    StackSamples,
    StepRecord,
    StepTimes,
    Table,
    rank_stem,
)

SCALARS = (
    "step",
    "start_ns",
    "end_ns",
    "host_start_ns",
    "host_end_ns",
    "micro_batches",
    "tokens",
    "samples",
    "recorder_ns",
    "complete",
)
"""The int64 columns of a batch, each a field of `StepRecord` (complete: 0 or 1)."""

TABLES: dict[str, type[Table]] = {
    "spans": Spans,
    "memory": MemorySamples,
    "counters": Counters,
    "unrecorded": StepTimes,
    "call_sites": CallSites,
    "stack_samples": StackSamples,
}
"""The list-of-struct columns of a batch, each a field of `StepRecord`."""

NAMES = "names"
"""The column of the names that a step used first; ids count on over the stream."""

_ARROW_TYPES = {
    "int8": na.int8(nullable=False),
    "int16": na.int16(nullable=False),
    "int32": na.int32(nullable=False),
    "int64": na.int64(nullable=False),
}


def _struct_of(table: type[Table]) -> na.Schema:
    columns = {n: _ARROW_TYPES[d.name] for n, d in table.columns().items()}
    return na.struct(columns, nullable=False)


def _list_of(item: na.Schema) -> na.Schema:
    return na.list_(item, nullable=False)


_STRUCTS = {name: _struct_of(table) for name, table in TABLES.items()}
_STRING = na.string(nullable=False)
_BATCH = na.struct(
    {
        **dict.fromkeys(SCALARS, _ARROW_TYPES["int64"]),
        **{name: _list_of(struct) for name, struct in _STRUCTS.items()},
        NAMES: _list_of(_STRING),
    }
)

# What nanoarrow's functions make of a schema, made once: a step has seventy arrays.
_INT64_C, _STRING_C, _BATCH_C = map(
    na.c_schema, (_ARROW_TYPES["int64"], _STRING, _BATCH)
)
_STRINGS_C = na.c_schema(_list_of(_STRING))
_STRUCTS_C = {name: na.c_schema(struct) for name, struct in _STRUCTS.items()}
_LISTS_C = {name: na.c_schema(_list_of(struct)) for name, struct in _STRUCTS.items()}
_COLUMNS_C = {
    name: {n: na.c_schema(_ARROW_TYPES[d.name]) for n, d in table.columns().items()}
    for name, table in TABLES.items()
}


def _list_of_one(list_type: Any, length: int, child: Any) -> Any:
    offsets = np.array([0, length], dtype=np.int32)
    return na.c_array_from_buffers(list_type, 1, [None, offsets], children=[child])


def _table_array(name: str, table: Table) -> Any:
    length = len(table)
    children = [
        na.c_array_from_buffers(
            of_column, length, [None, np.ascontiguousarray(getattr(table, n))]
        )
        for n, of_column in _COLUMNS_C[name].items()
    ]
    rows = na.c_array_from_buffers(_STRUCTS_C[name], length, [None], children=children)
    return _list_of_one(_LISTS_C[name], length, rows)


def _names_array(names: Sequence[str]) -> Any:
    # A name from a foreign file may hold lone surrogates, which UTF-8 cannot.
    encoded = [name.encode("utf-8", "replace") for name in names]
    ends = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    strings = na.c_array_from_buffers(
        _STRING_C, len(names), [None, ends, b"".join(encoded)]
    )
    return _list_of_one(_STRINGS_C, len(names), strings)


def _batch(record: StepRecord, names: Sequence[str]) -> Any:
    scalars = [
        na.c_array_from_buffers(
            _INT64_C,
            1,
            [None, np.array([int(getattr(record, name))], dtype=np.int64)],
        )
        for name in SCALARS
    ]
    tables = [_table_array(name, getattr(record, name)) for name in TABLES]
    return na.c_array_from_buffers(
        _BATCH_C, 1, [None], children=[*scalars, *tables, _names_array(names)]
    )


_BLOCK = 4096
_SLACK = 1024
"""A rank's header leaves so much room that its last word fits in its own blocks, where
the disk has no other."""


def write_json(path: Path, header: RunHeader | RankHeader, *, slack: int = 0) -> None:
    """Put a header in place of an earlier one, whole or not at all.

    With slack, where the disk has no room for another, it is written over the one
    that is there.
    """
    text = json.dumps(asdict(header), indent=1, allow_nan=False).encode()
    content = text
    if slack:
        content = text.ljust(-(-(len(text) + slack) // _BLOCK) * _BLOCK - 1) + b"\n"
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        file = open_file(new)
        try:
            write_all(file, content)
        finally:
            os.close(file)
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        if not slack or not _written_over(path, text):
            raise


def _written_over(path: Path, text: bytes) -> bool:
    try:
        size = path.stat().st_size
        if len(text) >= size:
            return False
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            return os.pwrite(file, text.ljust(size - 1) + b"\n", 0) == size
        finally:
            os.close(file)
    except OSError:
        return False


def open_file(path: Path, *, new: bool = False) -> int:
    """Create a file, under a descriptor that is none of the three standard ones: a
    script may have closed those, and go on printing. With `new` there must be none.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
    flags |= os.O_EXCL if new else 0
    low: list[int] = []
    try:
        while (file := os.open(path, flags, 0o666)) <= 2:
            low.append(file)
    finally:
        for taken in low:
            os.close(taken)
    return file


def _identity(file: int) -> tuple[int, int] | None:
    try:
        there = os.fstat(file)
    except OSError:
        return None
    return there.st_dev, there.st_ino


class OwnFile:
    """A file that stays open. The script may close its descriptor, as a daemon closes
    all there are, and get the same number for a file of its own: what is there is asked
    before each use, and is left alone.
    """

    def __init__(self, path: Path, *, new: bool = False) -> None:
        self._file = open_file(path, new=new)
        self._identity = _identity(self._file)

    def _own(self) -> int:
        if self._file < 0 or _identity(self._file) != self._identity:
            raise OSError("the script has closed its file")
        return self._file

    def append(self, content: bytes, size: int) -> None:
        """Write all of it behind the first `size` bytes, or nothing. Raises OSError."""
        file = self._own()
        try:
            write_all(file, content)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, size)
            raise

    def overwrite(self, content: bytes) -> None:
        """Write from the beginning on. Raises OSError."""
        os.pwrite(self._own(), content, 0)

    def close(self) -> None:
        """Close it; later calls do nothing."""
        file, self._file = self._file, -1
        if file >= 0 and self._identity == _identity(file):
            os.close(file)


def write_all(file: int, content: bytes) -> None:
    """Write to a descriptor, in as many pieces as the system takes."""
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]


def write_run_header(folder: Path, header: RunHeader) -> None:
    """Write `run.json`; `folder` is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", header)


class RankWriter:
    """One rank's files in a run folder. Each step is on its way to disk when
    `write_step` returns; the operating system keeps it if the process is killed.
    """

    def __init__(self, folder: Path, header: RankHeader) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        stem = folder / rank_stem(header.rank)
        self._header_path = stem.with_suffix(".json")
        self.write_header(header)
        self._file = OwnFile(stem.with_suffix(".arrows"))
        self._size = 0
        self._broken = False
        self._bytes = io.BytesIO()
        self._stream = StreamWriter.from_writable(self._bytes)

    def write_header(self, header: RankHeader) -> None:
        """Replace what the rank says of itself."""
        write_json(self._header_path, header, slack=_SLACK)

    def write_step(self, record: StepRecord, new_names: Sequence[str] = ()) -> None:
        """Append a step. `new_names` get the next ids, in order, from 0 on."""
        self._stream.write_array(_batch(record, new_names))
        self._append()

    def close(self) -> None:
        """End the stream. Without it readers see all steps, and a cut-off tail."""
        try:
            self._stream.close()
            if self._size and not self._broken:  # nothing ends what never began
                self._append()
        finally:
            self._file.close()

    def _append(self) -> None:
        """A step is in the file whole, or not at all."""
        content = self._bytes.getvalue()
        self._bytes.seek(0)
        self._bytes.truncate()
        try:
            self._file.append(content, self._size)
        except OSError:
            self._broken = True
            raise
        self._size += len(content)


def remove_rank(folder: Path, rank: int) -> None:
    """Take back the files of a rank whose record could not begin."""
    for suffix in (".json", ".arrows", ".beat"):
        with contextlib.suppress(OSError):
            (folder / rank_stem(rank)).with_suffix(suffix).unlink(missing_ok=True)


_SLOT = HEARTBEAT.size


class Heartbeat:
    """A rank's last events, in a file that outlives the process.

    See [Note: The heartbeat] in `schema`. `beat` costs about a third of a microsecond
    and touches no file; `flush`, which may fail and may take its time, does. Nothing is
    mapped: a page that the disk has no room for, or that somebody has cut off, would
    end the process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._ring = bytearray(HEARTBEAT.size * HEARTBEAT_SLOTS)
        # Who makes this file has the rank, in this folder.
        path = (folder / rank_stem(rank)).with_suffix(".beat")
        try:
            self._file = OwnFile(path, new=True)
        except FileExistsError:
            raise FileExistsError(
                f"rank {rank} has a record in {folder} already"
            ) from None
        self._count = self._written = 0
        self._pack = HEARTBEAT.pack_into

    @property
    def count(self) -> int:
        """How many events there were."""
        return self._count

    def beat(
        self,
        step: int,
        micro_batch: int,
        unit: int,
        kind: int,
        phase: int,
        seq: int,
        group: int,
        time_ns: int,
        size: int = 0,
    ) -> None:
        """Overwrite the oldest slot."""
        self._count = count = self._count + 1
        self._pack(
            self._ring,
            (count - 1) % HEARTBEAT_SLOTS * _SLOT,
            count,
            step,
            micro_batch,
            unit,
            kind,
            phase,
            seq,
            group,
            time_ns,
            size,
        )

    def flush(self) -> None:
        """Bring the file up to date. Raises OSError."""
        count = self._count
        if count != self._written:
            self._file.overwrite(bytes(self._ring))
            self._written = count

    def close(self) -> None:
        """Close the file, which stays."""
        self._written = self._count  # nothing more is brought there
        self._file.close()


class StringTable:
    """Interns strings: ids are given in the order in which they first came.

    They are what `Spans.name` and `Counters.name` hold, and the names of a trace.
    """

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}
        self.strings: list[str] = []
        self._written = 0

    def id(self, text: str) -> int:
        """The id of a string, a new one where it is new."""
        known = self.ids.get(text)
        if known is None:
            known = self.ids[text] = len(self.strings)
            self.strings.append(text)
        return known

    def take_new(self) -> list[str]:
        """The strings added since the last call, for `RankWriter.write_step`."""
        new = self.strings[self._written :]
        self._written = len(self.strings)
        return new

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self.strings)
