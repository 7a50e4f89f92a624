"""Reads a trace file: bytes to the columns of a `TraceFile`, in one pass.

The C scanner decodes where it was built, msgspec where it was not or where it
declines; the rows are the same. Only chunks that neither takes are salvaged.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fsdpdoctor.errors import InputError
from fsdpdoctor.importers.reader.chunks import Chunk, Framing, chunks
from fsdpdoctor.importers.reader.decode_json import (
    DAMAGED,
    CommIds,
    DecodedRows,
    as_int,
    decode_chunk,
    rows_of,
)
from fsdpdoctor.importers.reader.decompress import open_trace
from fsdpdoctor.importers.reader.memory_events import MEMORY_KEY, memory_events
from fsdpdoctor.importers.reader.op_filter import DEVICE_CATS, asked_of_ops
from fsdpdoctor.importers.reader.repair import Salvaged, salvage
from fsdpdoctor.importers.reader.trace_file import (
    ANNOTATION_PREFIXES,
    KEPT_OP_PREFIXES,
    Bools,
    Cat,
    Events,
    Health,
    Int64s,
    MemoryEvents,
    Ops,
    TraceFile,
    starts_with,
)
from fsdpdoctor.schema import NO_TIME, UNKNOWN, distinct, is_any
from fsdpdoctor.schema.string_table import StringTable
from fsdpdoctor.storage.spill import Column, Shelf, blocks, let_go

Decode = Callable[[bytes, StringTable], DecodedRows]
"""`decode_json.decode_chunk`, or the C scanner's."""

_RANK = re.compile(rb'"rank"\s*:\s*(\d{1,9})')
_WORLD_SIZE = re.compile(rb'"world_size"\s*:\s*(\d{1,9})')
_BASE_TIME = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')


def scan_file(path: Path, decode: Decode = decode_chunk) -> TraceFile:
    """Read a trace. Raises InputError where it cannot be opened or is two in one."""
    framing = Framing()
    columns = _Columns(decode=decode)
    tail = b""
    with open_trace(path) as file:
        for chunk in chunks(file, framing):
            if columns.closed:
                tail += chunk.text  # keys after the events, larger than a block
                continue
            if MEMORY_KEY in framing.head:  # else no chunk need be searched
                columns.memory.append(memory_events(chunk.text))
            tail = columns.add(chunk, framing.separator) or b""
    # Between two events, too, a file can break off. A bare array need not be closed.
    unclosed = bool(framing.head) and framing.has_events and not columns.closed
    if columns.truncated_at is None and (unclosed or framing.broken is not None):
        columns.truncated_at = framing.size
    _refuse_two_in_one(path, framing, tail)
    return columns.finish(read_metadata(framing.head, tail))


def _refuse_two_in_one(path: Path, framing: Framing, tail: bytes) -> None:
    second = tail.find(b'"traceEvents"')
    if second >= 0:
        raise InputError(
            f"{path} holds more than one trace: a second one begins near byte "
            f"{framing.size - len(tail) + second}, as when several ranks write one "
            "file. Give each rank its own file, with the rank in its name"
        )


@dataclass(slots=True, kw_only=True)
class _Columns:
    """The columns of a file as its chunks come in."""

    decode: Decode
    names: StringTable = field(default_factory=StringTable)
    memory: list[MemoryEvents] = field(default_factory=list)
    comms: CommIds = field(default_factory=CommIds)
    events: Shelf = field(default_factory=lambda: Shelf(Events.columns()))
    ops: Shelf = field(default_factory=lambda: Shelf(Ops.columns()))
    kept_op: npt.NDArray[np.bool_] = field(  # by name id
        default_factory=lambda: np.empty(0, dtype=np.bool_)
    )
    op_pids: set[int] = field(default_factory=set)
    call_pids: set[int] = field(default_factory=set)
    unread: Counter[str] = field(default_factory=Counter)
    seen: int = 0  # decoded
    lost: int = 0  # beyond repair
    repaired: int = 0
    timeless: int = 0
    negative: int = 0
    damaged_at: int | None = None
    truncated_at: int | None = None
    closed: bool = False

    def add(self, chunk: Chunk, separator: bytes) -> bytes | None:
        """Take a chunk's rows; what follows the array's end, where that is in it."""
        if not chunk.last:
            try:
                self._take(self.decode(chunk.text, self.names))
            except DAMAGED:
                pass
            else:
                return None
        found = salvage(chunk, separator)
        self._take_salvaged(found)
        if found.tail is not None:
            self.closed = True
        return found.tail

    def _take_salvaged(self, found: Salvaged) -> None:
        times = (
            np.array([row[1] for row in found.rows], dtype=np.int64),
            np.array([row[2] for row in found.rows], dtype=np.int64),
        )
        kept = [row[0] for row in found.rows]
        self._take(rows_of(kept, found.events, times, self.names, found.unread))
        self.repaired += found.repaired
        self.lost += found.dropped
        if self.damaged_at is None:
            self.damaged_at = found.damaged_at
        self.truncated_at = found.truncated_at

    def _take(self, rows: DecodedRows) -> None:
        self.seen += rows.events
        if new := self.names.strings[len(self.kept_op) :]:
            kept = np.array(starts_with(new, KEPT_OP_PREFIXES), dtype=np.bool_)
            self.kept_op = np.concatenate((self.kept_op, kept))
        timeless = (rows.start_ns == NO_TIME) | (rows.duration_ns == NO_TIME)
        negative = ~timeless & (rows.duration_ns < 0)
        self.timeless += int(timeless.sum())
        self.negative += int(negative.sum())
        sound = ~(timeless | negative)
        is_op = rows.cat == Cat.CPU_OP
        self.unread.update(rows.unread)
        self.op_pids.update(pid for pid in rows.left_pids if pid >= 0)
        self.op_pids.update(_processes(rows.pid[is_op]))
        self.call_pids.update(_processes(rows.pid[rows.cat == Cat.RUNTIME]))
        self.ops.put(rows.ops._asdict().items())
        self._add_events(rows, sound & (~is_op | self.kept_op[rows.name]))

    def _add_events(self, rows: DecodedRows, keep: npt.NDArray[np.bool_]) -> None:
        comm = np.full(len(rows.cat), UNKNOWN, dtype=np.int32)
        seq = np.full(len(rows.cat), UNKNOWN, dtype=np.int64)
        for row, args in zip(rows.comm_rows.tolist(), rows.comm_args, strict=True):
            comm[row] = self.comms.id(args)
            seq[row] = as_int(args.seq)
        columns = {**rows._asdict(), "comm": comm, "seq": seq}
        columns |= _placed_by_row(rows)
        # Numbers of the few rows pick faster from a dozen columns than a mask of all.
        at = np.flatnonzero(keep)
        self.events.put((name, _at(columns[name], at)) for name in Events.columns())

    def finish(self, metadata: dict[str, object]) -> TraceFile:
        """The whole file."""
        events = _annotations_by_name(
            Events(**self.events.take()),  # type: ignore[arg-type]
            np.array(starts_with(self.names.strings, ANNOTATION_PREFIXES), np.bool_),
        )
        ops = Ops(**self.ops.take())  # type: ignore[arg-type]
        return TraceFile(
            metadata=metadata,
            names=tuple(self.names.strings),
            comms=self.comms.all,
            events=events,
            ops=_of_ids(ops, asked_of_ops(events)),
            memory=MemoryEvents.concat(self.memory),
            # A device's driver may have a process of its own in the file, and makes
            # no operators.
            pids=tuple(sorted(self.op_pids or self.call_pids)),
            unread=dict(self.unread),
            health=Health(
                events=self.seen + self.lost,
                repaired=self.repaired,
                dropped=self.lost + self.timeless + self.negative,
                negative_durations=self.negative,
                truncated_at=self.truncated_at,
                damaged_at=self.damaged_at,
            ),
        )


def _at(column: Column, rows: Int64s) -> Column:
    """Some rows of a column, which has them all: to check each takes half as long."""
    return column.take(rows, mode="clip")


def _processes(pid: Int64s) -> list[int]:
    """The processes of some rows: nearly always one, which needs no sorting."""
    if not len(pid):
        return []
    first = int(pid[0])
    found = [first] if (pid == first).all() else distinct(pid).tolist()
    return [one for one in found if one >= 0]


def _placed_by_row(rows: DecodedRows) -> dict[str, Int64s]:
    """Streams with those of device work without arguments filled in: the viewer's row
    (`tid`) is the stream's. That it names no device says afterwards what it lacked.
    """
    bare = is_any(rows.cat, *DEVICE_CATS) & (rows.stream == UNKNOWN) & (rows.tid >= 0)
    bare &= rows.correlation == UNKNOWN
    if not bare.any():
        return {}
    return {"stream": np.where(bare, rows.tid, rows.stream)}


def _annotations_by_name(events: Events, named: Bools) -> Events:
    """Operators of an annotation's name as annotations, unless it has that, too.

    `named`: by name id.
    """
    as_ops, as_annotations = np.zeros_like(named), np.zeros_like(named)
    for block in blocks(len(events)):
        cat, name = events.cat[block], events.name[block]
        as_ops[name[cat == Cat.CPU_OP]] = True
        as_annotations[name[cat == Cat.ANNOTATION]] = True
        let_go(events)
    wanted = named & as_ops & ~as_annotations
    if not wanted.any():
        return events
    shelf = Shelf({"cat": Events.columns()["cat"]})
    for block in blocks(len(events)):
        cat = events.cat[block].copy()
        cat[(cat == Cat.CPU_OP) & wanted[events.name[block]]] = Cat.ANNOTATION
        shelf.put([("cat", cat)])
        let_go(events)
    return replace(events, **shelf.take())  # type: ignore[arg-type]


def _of_ids(ops: Ops, asked: Int64s) -> Ops:
    """Of millions of operators, those that tell where a kernel came from."""
    shelf = Shelf(Ops.columns())
    for block in blocks(len(ops) if len(asked) else 0):
        some = ops.rows(block)
        at = np.searchsorted(asked, some.external)
        wanted = asked[np.minimum(at, len(asked) - 1)] == some.external
        shelf.put(some.rows(wanted).items())
        let_go(ops)
    return Ops(**shelf.take())  # type: ignore[arg-type]


def read_metadata(head: bytes, tail: bytes = b"") -> dict[str, object]:
    """The keys around a trace's events. Of damaged text, those that matter most."""
    found: dict[str, object] = {}
    for text in (b"{" + tail.lstrip(b", \t\r\n]"), head.rstrip(b", \t\r\n") + b"}"):
        if not text.strip(b"{} \t\r\n"):
            continue
        try:
            parsed = json.loads(text.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            parsed = _essentials(text)
        if isinstance(parsed, dict):
            found |= parsed
    return found


def _essentials(text: bytes) -> dict[str, object]:
    found: dict[str, object] = {}
    if rank := _RANK.search(text):
        info: dict[str, object] = {"rank": int(rank[1])}
        if world_size := _WORLD_SIZE.search(text):
            info["world_size"] = int(world_size[1])
        found["distributedInfo"] = info
    if base := _BASE_TIME.search(text):
        found["baseTimeNanoseconds"] = int(base[1])
    return found
