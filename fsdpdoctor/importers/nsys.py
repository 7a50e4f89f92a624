"""Nsight Systems exports (`nsys export --type sqlite`): CUPTI tables and NVTX ranges.

FSDP2's labels are among the NVTX ranges where `torch.autograd.profiler.emit_nvtx`
was on; without it there are kernels and no units. Collectives have no arguments
there: kinds are from kernel names, and sizes are not known. A report of a node holds
several processes: each is a rank, and its ids are its own.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fsdpdoctor.errors import InputError
from fsdpdoctor.importers.kineto.source import attribute, rank_data
from fsdpdoctor.importers.kineto.steps import is_own_mark
from fsdpdoctor.importers.reader.trace_file import (
    KEPT_OP_PREFIXES,
    Cat,
    Events,
    Health,
    TraceFile,
)
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import UNKNOWN, distinct
from fsdpdoctor.schema.string_table import StringTable
from fsdpdoctor.storage.spill import Shelf
from fsdpdoctor.untrusted.headers import MOST

# emit_nvtx writes "aten::mm, seq = 3, op_id = 12, sizes = [[2, 3]]".
_EMIT_NVTX_SUFFIX = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = .*$")

_OWN_RANGES = ("FSDP::", "ProfilerStep", "Optimizer.step#", "enumerate(DataLoader)#")
"""Ranges that torch.profiler would call annotations; others that are kept are
operators."""

ROWS_AT_A_TIME = 1 << 13
"""Rows that are Python's at a time: some 5 MB."""

_PROCESS_MASK = 0xFFFFFF
"""A globalTid has the thread in its low 24 bits and the process in the next 24."""


_PROCESS_SHIFT = 24


class _Query(NamedTuple):
    """How a table's rows are read: the columns that every kind of row has."""

    table: str
    cat: Cat
    name: str  # SQL
    more: str  # correlation, stream, device, bytes
    joined: str = ""
    thread: str = "NULL"
    process: str = "globalPid"  # the column that says whose it is


_STRING = "LEFT JOIN StringIds AS s ON s.id ="
_QUERIES: tuple[_Query, ...] = (
    _Query(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        Cat.KERNEL,
        name="s.value",
        more="correlationId, streamId, deviceId, NULL",
        joined=f"{_STRING} t.demangledName",
    ),
    _Query(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        Cat.MEMCPY,
        name="'Memcpy kind ' || copyKind",
        more="correlationId, streamId, deviceId, bytes",
    ),
    _Query(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        Cat.MEMSET,
        name="'Memset'",
        more="correlationId, streamId, deviceId, bytes",
    ),
    _Query(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        Cat.RUNTIME,
        name="s.value",
        more="correlationId, NULL, NULL, NULL",
        joined=f"{_STRING} t.nameId",
        thread="globalTid",
        process="globalTid",
    ),
    _Query(
        "NVTX_EVENTS",
        Cat.ANNOTATION,
        name="COALESCE(t.text, s.value)",
        more="NULL, NULL, NULL, NULL",
        joined=f"{_STRING} t.textId",
        thread="globalTid",
        process="globalTid",
    ),
)

_RUNTIME_VERSION = re.compile(r"_v\d+$")
# nsys names calls with their version: cudaLaunchKernel_v7000.


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysSource:
    """One rank's export. Pickles: a worker process loads it."""

    path: Path
    rank: int
    world_size: int
    process: int | None = None  # whose rows are read, where a report holds several
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return str(self.path)

    def load(self) -> RankData:
        """Read and attribute the export. Raises InputError."""
        trace = read_export(self.path, self.process)
        if self.process is None and len(trace.pids) > 1:
            shown = ", ".join(map(str, trace.pids[:8]))
            raise InputError(
                f"{self.path} holds {len(trace.pids)} processes (pid {shown}) and does "
                "not say whose its kernels are: export it with nsys 2022 or later, or "
                "profile each rank into its own report: nsys profile -o rank%q{RANK}"
            )
        return rank_data(attribute(trace, self.rank, self.world_size), self.notes)


MOST_PROCESSES = 1024
"""Of one report, which is of a node; each is read by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of a report that ran work on a device: a rank."""

    pid: int
    device: int  # its lowest, or UNKNOWN


def processes_of(path: Path) -> list[Process]:
    """The processes of a report whose kernels ran, by device; empty where it does not
    say whose its kernels are. Raises InputError.
    """
    found: dict[int, int] = {}
    with _opened(path) as db:
        if "globalPid" not in _columns_of(db, "CUPTI_ACTIVITY_KIND_KERNEL"):
            return []
        rows = db.execute(
            f"SELECT (globalPid >> {_PROCESS_SHIFT}) & {_PROCESS_MASK}, MIN(deviceId) "
            "FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid IS NOT NULL GROUP BY 1"
        )
        for pid, device in rows:
            found[pid] = device if isinstance(device, int) else UNKNOWN
    if len(found) > MOST_PROCESSES:
        raise InputError(
            f"{path} has kernels of {len(found)} processes; expected the ranks of a "
            f"node, {MOST_PROCESSES} at most"
        )
    ranked = [Process(pid=pid, device=device) for pid, device in found.items()]
    # torchrun gives local rank N device N; processes of one device are by their id.
    return sorted(ranked, key=lambda one: (one.device, one.pid))


def read_export(path: Path, process: int | None = None) -> TraceFile:
    """The rows of an export, or of one process in it. Raises InputError."""
    columns = _Columns()
    with _opened(path) as db:
        tables = _tables(db)
        if "StringIds" not in tables:
            raise InputError(f"{path} has no StringIds table: no nsys export")
        for query in _QUERIES:
            if query.table in tables:
                sql = _sql(query, of_process=process is not None)
                columns.add(query.cat, db.execute(sql, {"process": process}))
    return columns.finish()


def _sql(query: _Query, *, of_process: bool) -> str:
    whose = f"(t.{query.process} >> {_PROCESS_SHIFT}) & {_PROCESS_MASK} = :process"
    # A mark has no end. Whose a kernel is, an old report of one process lacks.
    where = ['t."end" IS NOT NULL'] if query.cat == Cat.ANNOTATION else []
    where += [whose] if of_process else []
    return (
        f'SELECT t.start, t."end", {query.name}, {query.thread}, {query.more} '
        f"FROM {query.table} AS t {query.joined} "
        f"WHERE {' AND '.join(where) or 'TRUE'} ORDER BY t.start"
    )


TICK = 1_000_000
LEAST_STEPS = 50 * TICK
STEPS_OF_BYTE = 50
"""Of SQLite's machine: for each byte of a file, and for any. The rows of an export take
one or two for each; a view without an end, or names that each stand for every row, are
stopped after some seconds.
"""


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    uri = f"{path.resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as db:
            db.text_factory = lambda text: text.decode(errors="replace")
            steps = LEAST_STEPS + STEPS_OF_BYTE * path.stat().st_size
            ticks = iter(range(steps // TICK))
            db.set_progress_handler(lambda: next(ticks, None) is None, TICK)
            yield db
    except (sqlite3.Error, UnicodeDecodeError) as error:  # its messages quote bytes
        raise InputError(
            f"{path} cannot be read as an Nsight Systems export: {error}; expected "
            "what `nsys export --type sqlite` of nsys 2022 or later writes"
        ) from None


def _columns_of(db: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in db.execute(f"PRAGMA table_info({table})")}


def _tables(db: sqlite3.Connection) -> set[str]:
    rows = db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    return {name for (name,) in rows}


_ROW = (
    *("cat", "name", "start_ns", "duration_ns"),
    *("tid", "correlation", "stream", "device", "bytes"),
)
"""The columns of an event that a row of the database has."""


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
            if not (
                isinstance(start, int)
                and isinstance(end, int)
                and -MOST < start <= end < MOST  # beyond it durations do not fit
            ):
                self._dropped += 1
                continue
            name = text if isinstance(text, str) else ""
            kept_as, name = _as_torch_writes(cat, name)
            if kept_as is None:
                continue
            ids = (one if isinstance(one, int) else UNKNOWN for one in rest)
            rows.append((kept_as, self._names.id(name), start, end - start, *ids))
        table = np.array(rows, dtype=np.int64).reshape(-1, len(_ROW)).T
        columns = dict(zip(_ROW, table, strict=True))
        if cat == Cat.RUNTIME:
            thread = columns["tid"]
            calls = distinct(thread[thread >= 0] >> 24) & _PROCESS_MASK
            self._pids.update(calls.tolist())
        self._shelf.put(Events.build(len(rows), **columns).items())

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
    if name.startswith(_OWN_RANGES) or is_own_mark(name):
        return Cat.ANNOTATION, name
    return (Cat.CPU_OP if name.startswith(KEPT_OP_PREFIXES) else None), name
