"""Rows of a chunk from the C scanner, the same as `decode_json.decode_chunk` gives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.reader.decode_json import (
    DAMAGED,
    NO_ARGS,
    DecodedRows,
    OpRows,
    Row,
    as_int,
    decode_args,
    decode_chunk,
    decode_event,
    on_host,
    ran,
    streams,
    thread_id,
)
from fsdpdoctor.importers.reader.trace_file import (
    CATEGORIES,
    COMM_OP_PREFIXES,
    KEPT_OP_PREFIXES,
    Cat,
    Int64s,
    starts_with,
)
from fsdpdoctor.schema import UNKNOWN
from fsdpdoctor.schema.string_table import StringTable

COLUMNS = (
    *(("start_ns", "<i8"), ("duration_ns", "<i8"), ("pid", "<i8"), ("tid", "<i8")),
    *(("external", "<i8"), ("correlation", "<i8"), ("stream", "<i8")),
    *(("device", "<i8"), ("bytes", "<i8")),
    *(("name", "<i4"), ("args_at", "<i4"), ("args_end", "<i4")),
    *(("event_at", "<i4"), ("event_end", "<i4")),
    *(("cat", "i1"), ("collective", "i1"), ("odd", "i1")),
)
"""Of the events that `scan` gives, in the order of `_scan.c`."""

OP_COLUMNS = (
    *(("external", "<i8"), ("start_ns", "<i8"), ("tid", "<i8")),
    ("row", "<i4"),  # of an odd event; UNKNOWN of the others
)
"""Of the operators and annotations."""

ScannedRows = tuple[int, tuple[bytearray, ...]]
"""How many rows, and their columns, which are at least as long."""

Scanned = tuple[int, list[bytes], ScannedRows, ScannedRows, list[int], dict[str, int]]
"""How many events there were, the names that are new, the rows of the events and of the
operators, the processes of operators that got no row among the events, and how many
events there were of each category that is not kept.
"""

SCANNER_VERSION = 4
"""Of what `scan` gives. An extension that was built from other sources is not asked."""


SCANNED = {text: int(cat) for text, cat in CATEGORIES.items()}
"""The categories whose rows the scanner keeps."""

OP_CATEGORIES = (int(Cat.CPU_OP), int(Cat.ANNOTATION))
"""Of these it says where they ran. Only the first can be left out."""


class ScannerType(Protocol):
    """What `_scan.Scanner` is."""

    def scan(self, chunk: bytes, /) -> Scanned | None:
        """The rows of a chunk; None where msgspec must read it."""
        ...


class CDecoder:
    """Decodes the chunks of one file. It knows the file's names, so: one per file."""

    def __init__(self, make: Callable[[], ScannerType]) -> None:
        self._make = make
        self._forget()

    def _forget(self) -> None:
        self._scanner = self._make()
        self._ids = np.empty(0, dtype=np.int32)  # of the scanner's names
        self._comm = np.empty(0, dtype=np.bool_)  # which of them say a collective

    def __call__(self, chunk: bytes, names: StringTable) -> DecodedRows:
        """The rows of a chunk. Raises one of `decode_json.DAMAGED`."""
        scanned = self._scanner.scan(chunk)
        if scanned is None:
            return decode_chunk(chunk, names)
        try:
            return self._rows(chunk, scanned, names)
        except DAMAGED:
            self._forget()  # of names that no row has
            raise

    def _rows(self, chunk: bytes, scanned: Scanned, names: StringTable) -> DecodedRows:
        """All that may be damaged is decoded before a name gets its id."""
        events, new, event_rows, op_rows, left_pids, unread = scanned
        texts = [_text(raw) for raw in new]
        comm = np.array(starts_with(texts, COMM_OP_PREFIXES), dtype=np.bool_)
        self._comm = np.concatenate((self._comm, comm))
        of, ops = _columns(COLUMNS, event_rows), _columns(OP_COLUMNS, op_rows)
        name = of["name"]
        comm_rows = np.flatnonzero(
            of["collective"].view(np.bool_) | (on_host(of["cat"]) & self._comm[name])
        ).astype(np.int64)
        again = np.flatnonzero(of["odd"]).astype(np.int64)
        spans = _spans(of["event_at"], of["event_end"], again)
        found = [decode_event(chunk[first:last]) for first, last in spans]
        comm_args = [
            decode_args(chunk[at:end]) if at >= 0 else NO_ARGS
            for at, end in _spans(of["args_at"], of["args_end"], comm_rows)
        ]
        ids = np.array([names.id(text) for text in texts], dtype=np.int32)
        self._ids = np.concatenate((self._ids, ids))
        decoded = DecodedRows(
            events=events,
            cat=of["cat"],
            name=self._ids[name],
            start_ns=of["start_ns"],
            duration_ns=of["duration_ns"],
            pid=of["pid"],
            tid=of["tid"],
            external=of["external"],
            correlation=of["correlation"],
            stream=streams(of["stream"]),
            device=of["device"],
            bytes=of["bytes"],
            comm_rows=comm_rows,
            comm_args=comm_args,
            unread=unread,
            ops=OpRows(**{name: ops[name] for name in OpRows._fields}),
            left_pids=left_pids,
        )
        if not len(again):
            return decoded
        return _with_odd_ops(_corrected(decoded, again, found, names), ops["row"])


def _columns(
    columns: tuple[tuple[str, str], ...], scanned: ScannedRows
) -> dict[str, npt.NDArray[Any]]:
    rows, blocks = scanned
    return {
        name: np.frombuffer(block, dtype=dtype, count=rows)
        for (name, dtype), block in zip(columns, blocks, strict=True)
    }


def _with_odd_ops(rows: DecodedRows, row: npt.NDArray[np.int32]) -> DecodedRows:
    """What is told of odd operators as their events were corrected to. `row`: the row
    of each that is odd, else UNKNOWN.
    """
    odd = row != UNKNOWN
    at = row[odd]
    told = np.ones(len(row), dtype=np.bool_)
    told[odd] = ran(rows.cat, (rows.start_ns, rows.duration_ns), rows.external)[at]
    ops = {}
    for name, column in rows.ops._asdict().items():
        corrected = column.copy()
        corrected[odd] = getattr(rows, name)[at]
        ops[name] = corrected[told]
    return rows._replace(ops=OpRows(**ops))


def _spans(
    begin: npt.NDArray[np.int32], end: npt.NDArray[np.int32], rows: Int64s
) -> Iterator[tuple[int, int]]:
    """Where in the chunk what is of some rows stands."""
    return zip(begin[rows].tolist(), end[rows].tolist(), strict=True)


def _text(raw: bytes) -> str:
    """A name as the scanner found it between its quotes."""
    if b"\\" not in raw:
        return raw.decode()
    return str(msgspec.json.decode(b'"' + raw + b'"', type=str))


def _corrected(
    rows: DecodedRows,
    at: Int64s,
    found: Sequence[Row | str],
    names: StringTable,
) -> DecodedRows:
    """Rows whose values C does not take, from their events' own text."""
    kept = [one for one in found if not isinstance(one, str)]
    assert len(kept) == len(at)  # C keeps only what is kept here
    events = [event for event, _, _ in kept]
    return rows._replace(
        start_ns=_put(rows.start_ns, at, [start for _, start, _ in kept]),
        duration_ns=_put(rows.duration_ns, at, [length for _, _, length in kept]),
        pid=_put(rows.pid, at, [thread_id(event.pid, names) for event in events]),
        tid=_put(rows.tid, at, [thread_id(event.tid, names) for event in events]),
        external=_put(rows.external, at, [as_int(e.args.external) for e in events]),
        correlation=_put(
            rows.correlation, at, [as_int(e.args.correlation) for e in events]
        ),
        stream=streams(_put(rows.stream, at, [as_int(e.args.stream) for e in events])),
        device=_put(rows.device, at, [as_int(e.args.device) for e in events]),
        bytes=_put(rows.bytes, at, [as_int(e.args.bytes) for e in events]),
    )


def _put(
    column: npt.NDArray[np.int64], at: Int64s, values: list[int]
) -> npt.NDArray[np.int64]:
    column = column.copy()
    column[at] = values
    return column


def c_decoder(*, every_op: bool) -> CDecoder | None:
    """A decoder for one file; None where the extension was not built. `every_op`: no
    operator is left out.
    """
    try:
        from fsdpdoctor import _scan
    except ImportError:
        return None
    if getattr(_scan, "VERSION", None) != SCANNER_VERSION:
        return None
    kept = () if every_op else KEPT_OP_PREFIXES
    return CDecoder(functools.partial(_scan.Scanner, SCANNED, *OP_CATEGORIES, kept))
