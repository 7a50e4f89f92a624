"""Writes the files of a run. The recorder uses it, so: numpy and nanoarrow only.

See [Note: A run on disk] in `schema`.
"""

from __future__ import annotations

import json
import mmap
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


_STRUCTS = {name: _struct_of(table) for name, table in TABLES.items()}
_BATCH = na.struct(
    {
        **{name: na.int64(nullable=False) for name in SCALARS},
        **{name: na.list_(struct, nullable=False) for name, struct in _STRUCTS.items()},
        NAMES: na.list_(na.string(nullable=False), nullable=False),
    }
)


def _list_of_one(item: na.Schema, length: int, child: Any) -> Any:
    offsets = np.array([0, length], dtype=np.int32)
    return na.c_array_from_buffers(
        na.list_(item, nullable=False), 1, [None, offsets], children=[child]
    )


def _table_array(name: str, table: Table) -> Any:
    children = [
        na.c_array_from_buffers(_ARROW_TYPES[dtype.name], len(table), [None, column])
        for column, dtype in (
            (np.ascontiguousarray(getattr(table, n)), d)
            for n, d in table.columns().items()
        )
    ]
    rows = na.c_array_from_buffers(
        _STRUCTS[name], len(table), [None], children=children
    )
    return _list_of_one(_STRUCTS[name], len(table), rows)


def _names_array(names: Sequence[str]) -> Any:
    # A name from a foreign file may hold lone surrogates, which UTF-8 cannot.
    encoded = [name.encode("utf-8", "replace") for name in names]
    ends = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    strings = na.c_array_from_buffers(
        na.string(nullable=False), len(names), [None, ends, b"".join(encoded)]
    )
    return _list_of_one(na.string(nullable=False), len(names), strings)


def _batch(record: StepRecord, names: Sequence[str]) -> Any:
    scalars = [
        na.c_array_from_buffers(
            na.int64(nullable=False),
            1,
            [None, np.array([int(getattr(record, name))], dtype=np.int64)],
        )
        for name in SCALARS
    ]
    tables = [_table_array(name, getattr(record, name)) for name in TABLES]
    return na.c_array_from_buffers(
        _BATCH, 1, [None], children=[*scalars, *tables, _names_array(names)]
    )


def write_json(path: Path, header: RunHeader | RankHeader) -> None:
    """Put a header in place of an earlier one, whole or not at all."""
    text = json.dumps(asdict(header), indent=1, allow_nan=False)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


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
        self._file = stem.with_suffix(".arrows").open("wb")
        self._stream = StreamWriter.from_writable(self._file)

    def write_header(self, header: RankHeader) -> None:
        """Replace what the rank says of itself."""
        write_json(self._header_path, header)

    def write_step(self, record: StepRecord, new_names: Sequence[str] = ()) -> None:
        """Append a step. `new_names` get the next ids, in order, from 0 on."""
        self._stream.write_array(_batch(record, new_names))
        self._file.flush()

    def close(self) -> None:
        """End the stream. Without it readers see all steps, and a cut-off tail."""
        self._stream.close()
        self._file.close()


_SLOT = HEARTBEAT.size


class Heartbeat:
    """A rank's last events, in a mapped file that outlives the process.

    See [Note: The heartbeat] in `schema`. `beat` costs about a microsecond.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        length = HEARTBEAT.size * HEARTBEAT_SLOTS
        with (folder / rank_stem(rank)).with_suffix(".beat").open("w+b") as file:
            file.truncate(length)
            self._map = mmap.mmap(file.fileno(), length)
        self._count = 0
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
    ) -> None:
        """Overwrite the oldest slot."""
        self._count = count = self._count + 1
        self._pack(
            self._map,
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
        )

    def close(self) -> None:
        """Unmap. The file stays."""
        self._map.close()


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
