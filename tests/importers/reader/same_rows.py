"""Whether two ways of reading give the same: of chunks, and of whole files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fsdpdoctor.importers.reader.decode_json import DAMAGED, DecodedRows
from fsdpdoctor.importers.reader.read_trace import Decode
from fsdpdoctor.importers.reader.trace_file import Events, MemoryEvents, Ops, TraceFile
from fsdpdoctor.schema.string_table import StringTable

Outcome = tuple[dict[str, object], list[str]] | None
"""The columns of a chunk and the names so far; None: a damaged chunk."""


def outcome(rows: DecodedRows, names: StringTable) -> Outcome:
    """Rows and names as values that compare."""
    columns = {
        field: value.tolist() if isinstance(value, np.ndarray) else repr(value)
        for field, value in rows._asdict().items()
        if field != "comm_args"
    }
    said = [
        [getattr(args, name) for name in args.__struct_fields__[:-2]]
        + [bytes(args.dims), bytes(args.types)]
        for args in rows.comm_args
    ]
    return {**columns, "comm_args": said}, list(names.strings)


def outcomes(chunks: Sequence[bytes], decode: Decode) -> list[Outcome]:
    """What a decoder makes of a file's chunks, one after the other."""
    names = StringTable()
    found: list[Outcome] = []
    for chunk in chunks:
        try:
            found.append(outcome(decode(chunk, names), names))
        except DAMAGED:
            found.append(None)
    return found


def chunks_of(data: bytes) -> list[bytes]:
    """One input of the fuzzer as chunks. No UTF-8 holds the byte between them."""
    return data.split(b"\xff\n")


def same(a: TraceFile, b: TraceFile) -> bool:
    """Whether two readings are equal in everything."""
    return (
        (a.metadata, a.names, a.comms, a.pids, a.unread, a.health)
        == (b.metadata, b.names, b.comms, b.pids, b.unread, b.health)
        and all(
            np.array_equal(getattr(a.events, name), getattr(b.events, name))
            for name in Events.columns()
        )
        and all(
            np.array_equal(getattr(a.ops, name), getattr(b.ops, name))
            for name in Ops.columns()
        )
        and all(
            np.array_equal(getattr(a.memory, name), getattr(b.memory, name))
            for name in MemoryEvents.columns()
        )
    )
