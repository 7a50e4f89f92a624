"""Nsight Systems exports (`nsys export --type sqlite`): CUPTI tables and NVTX ranges.

FSDP2's labels are among the NVTX ranges where `torch.autograd.profiler.emit_nvtx`
was on; without it there are kernels and no units. Collectives have no arguments
there: kinds are from kernel names, and sizes are not known.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fsdpdoctor.errors import InputError
from fsdpdoctor.importers.kineto.source import attribute, rank_data
from fsdpdoctor.importers.reader.trace_file import (
    KEPT_OP_PREFIXES,
    Cat,
    Events,
    Health,
    TraceFile,
)
from fsdpdoctor.run import RankData
from fsdpdoctor.run_writer import StringTable
from fsdpdoctor.schema import UNKNOWN
from fsdpdoctor.storage.spill import Shelf

# emit_nvtx writes "aten::mm, seq = 3, op_id = 12, sizes = [[2, 3]]".
_EMIT_NVTX_SUFFIX = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = .*$")

_OWN_RANGES = ("FSDP::", "ProfilerStep#", "Optimizer.step#", "enumerate(DataLoader)#")
"""Ranges that torch.profiler would call annotations; others that are kept are
operators."""

ROWS_AT_A_TIME = 1 << 13
"""Rows that are Python's at a time: some 5 MB."""

_PROCESS_MASK = 0xFFFFFF
"""A globalTid has the thread in its low 24 bits and the process in the next 24."""


_KERNELS = """
    SELECT start, "end", s.value, NULL, correlationId, streamId, deviceId, NULL
    FROM CUPTI_ACTIVITY_KIND_KERNEL AS k LEFT JOIN StringIds AS s
    ON s.id = k.demangledName ORDER BY start"""
_MEMCPY = """
    SELECT start, "end", 'Memcpy kind ' || copyKind, NULL, correlationId, streamId,
    deviceId, bytes FROM CUPTI_ACTIVITY_KIND_MEMCPY ORDER BY start"""
_MEMSET = """
    SELECT start, "end", 'Memset', NULL, correlationId, streamId, deviceId, bytes
    FROM CUPTI_ACTIVITY_KIND_MEMSET ORDER BY start"""
_RUNTIME = """
    SELECT start, "end", s.value, globalTid, correlationId, NULL, NULL, NULL
    FROM CUPTI_ACTIVITY_KIND_RUNTIME AS r LEFT JOIN StringIds AS s
    ON s.id = r.nameId ORDER BY start"""
_NVTX = """
    SELECT start, "end", COALESCE(n.text, s.value), globalTid, NULL, NULL, NULL, NULL
    FROM NVTX_EVENTS AS n LEFT JOIN StringIds AS s ON s.id = n.textId
    WHERE "end" IS NOT NULL ORDER BY start"""
_QUERIES: tuple[tuple[str, Cat, str], ...] = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", Cat.KERNEL, _KERNELS),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", Cat.MEMCPY, _MEMCPY),
    ("CUPTI_ACTIVITY_KIND_MEMSET", Cat.MEMSET, _MEMSET),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", Cat.RUNTIME, _RUNTIME),
    ("NVTX_EVENTS", Cat.ANNOTATION, _NVTX),
)

_RUNTIME_VERSION = re.compile(r"_v\d+$")
# nsys names calls with their version: cudaLaunchKernel_v7000.


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysSource:
    """One rank's export. Pickles: a worker process loads it."""

    path: Path
    rank: int
    world_size: int
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return str(self.path)

    def load(self) -> RankData:
        """Read and attribute the export. Raises InputError."""
        trace = read_export(self.path)
        if len(trace.pids) > 1:
            shown = ", ".join(map(str, trace.pids[:8]))
            raise InputError(
                f"{self.path} holds {len(trace.pids)} processes (pid {shown}); profile "
                "each rank into its own report: nsys profile -o rank%q{RANK} ..."
            )
        return rank_data(attribute(trace, self.rank, self.world_size), self.notes)


def read_export(path: Path) -> TraceFile:
    """The rows of an export. Raises InputError."""
    uri = f"{path.resolve().as_uri()}?mode=ro"
    columns = _Columns()
    try:
        with closing(sqlite3.connect(uri, uri=True)) as db:
            tables = _tables(db)
            if "StringIds" not in tables:
                raise InputError(f"{path} has no StringIds table: no nsys export")
            for table, cat, query in _QUERIES:
                if table in tables:
                    columns.add(cat, db.execute(query))
    except sqlite3.Error as error:
        raise InputError(
            f"{path} cannot be read as an Nsight Systems export: {error}; expected "
            "what `nsys export --type sqlite` of nsys 2022 or later writes"
        ) from None
    return columns.finish()


def _tables(db: sqlite3.Connection) -> set[str]:
    rows = db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    return {name for (name,) in rows}


class _Columns:
    """Rows of the database. See [Note: Memory that can be taken back]."""

    def __init__(self) -> None:
        self._names = StringTable()
        self._shelf = Shelf(Events.columns())
        self._pids: set[int] = set()  # of processes that made a call
        self._seen = self._dropped = 0

    def add(self, cat: Cat, cursor: sqlite3.Cursor) -> None:
        """Keep the rows of one query."""
        while found := cursor.fetchmany(ROWS_AT_A_TIME):
            self._put(cat, found)

    def _put(self, cat: Cat, found: Sequence[Sequence[object]]) -> None:
        rows: list[tuple[int, ...]] = []
        for start, end, text, *rest in found:
            self._seen += 1
            if not isinstance(start, int) or not isinstance(end, int) or end < start:
                self._dropped += 1
                continue
            name = text if isinstance(text, str) else ""
            kept_as, name = _as_torch_writes(cat, name)
            if kept_as is None:
                continue
            ids = (one if isinstance(one, int) else UNKNOWN for one in rest)
            rows.append((kept_as, self._names.id(name), start, end - start, *ids))
        table = np.array(rows, dtype=np.int64).reshape(-1, 9).T
        kept, names, starts, lengths, thread, correlation, stream, device, size = table
        if cat == Cat.RUNTIME:
            calls = np.unique(thread[thread >= 0] >> 24) & _PROCESS_MASK
            self._pids.update(calls.tolist())
        events = Events.build(
            cat=kept,
            name=names,
            start_ns=starts,
            duration_ns=lengths,
            tid=thread,
            correlation=correlation,
            stream=stream,
            device=device,
            bytes=size,
        )
        self._shelf.put(events.items())

    def finish(self) -> TraceFile:
        """The whole export."""
        return TraceFile(
            names=tuple(self._names.strings),
            events=Events(**self._shelf.take()),  # type: ignore[arg-type]
            pids=tuple(sorted(self._pids)),
            health=Health(events=self._seen, dropped=self._dropped),
        )


def _as_torch_writes(cat: Cat, name: str) -> tuple[Cat | None, str]:
    """What torch.profiler would call a row; None for a range that is not kept."""
    if cat == Cat.RUNTIME:
        return cat, _RUNTIME_VERSION.sub("", name)
    if cat != Cat.ANNOTATION:
        return cat, name
    name = _EMIT_NVTX_SUFFIX.sub("", name)
    if name.startswith(_OWN_RANGES):
        return Cat.ANNOTATION, name
    return (Cat.CPU_OP if name.startswith(KEPT_OP_PREFIXES) else None), name
