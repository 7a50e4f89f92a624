"""Whether two ways of reading give the same: of chunks, and of whole files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fsdpdoctor.importers.reader.decode_c import CDecoder, c_decoder
from fsdpdoctor.importers.reader.decode_json import DAMAGED, DecodedRows, decode_chunk
from fsdpdoctor.importers.reader.read_trace import Decode
from fsdpdoctor.importers.reader.trace_file import (
    KEPT_OP_PREFIXES,
    Cat,
    Events,
    MemoryEvents,
    Ops,
    TraceFile,
    starts_with,
)
from fsdpdoctor.schema import NO_TIME
from fsdpdoctor.schema.string_table import StringTable

Outcome = tuple[dict[str, object], list[str]] | None
"""The columns of a chunk and the names so far; None: a damaged chunk."""


def outcome(rows: DecodedRows, names: StringTable) -> Outcome:
    """Rows and names as values that compare."""
    columns = {
        field: value.tolist() if isinstance(value, np.ndarray) else repr(value)
        for field, value in rows._asdict().items()
        if field not in ("comm_args", "ops", "left_pids")
    }
    columns["left_pids"] = sorted(rows.left_pids)
    columns |= {f"op's {k}": v.tolist() for k, v in rows.ops._asdict().items()}
    said = [
        [getattr(args, name) for name in args.__struct_fields__[:-2]]
        + [bytes(args.dims), bytes(args.types)]
        for args in rows.comm_args
    ]
    return {**columns, "comm_args": said}, list(names.strings)


def without_plain_ops(rows: DecodedRows, names: StringTable) -> DecodedRows:
    """The rows without operators that `scan_file` asks only where they ran, which a
    decoder may leave out.
    """
    kept = np.array(starts_with(names.strings, KEPT_OP_PREFIXES), dtype=np.bool_)
    sound = (rows.start_ns != NO_TIME) & (rows.duration_ns >= 0)
    plain = sound & (rows.cat == Cat.CPU_OP)
    plain[plain] &= ~kept[rows.name[plain]]
    columns = {
        name: value[~plain]
        for name, value in rows._asdict().items()
        if isinstance(value, np.ndarray) and name != "comm_rows"
    }
    said = ~plain[rows.comm_rows]
    return rows._replace(
        **columns,
        comm_rows=(np.cumsum(~plain) - 1)[rows.comm_rows[said]],
        comm_args=[one for one, here in zip(rows.comm_args, said, strict=True) if here],
        left_pids=[*{*rows.left_pids, *rows.pid[plain].tolist()}],
    )


def outcomes(
    chunks: Sequence[bytes], decode: Decode, *, every_op: bool = True
) -> list[Outcome]:
    """What a decoder makes of a file's chunks, one after the other."""
    names = StringTable()
    found: list[Outcome] = []
    for chunk in chunks:
        try:
            rows = decode(chunk, names)
            if not every_op:
                rows = without_plain_ops(rows, names)
            found.append(outcome(rows, names))
        except DAMAGED:
            found.append(None)
    return found


def decoder(*, every_op: bool = True) -> CDecoder:
    """A C decoder for one file."""
    found = c_decoder(every_op=every_op)
    assert found is not None
    return found


def read_alike(chunks: Sequence[bytes]) -> bool:
    """Whether C reads a file's chunks as msgspec does, plain operators or not."""
    return all(
        outcomes(chunks, decoder(every_op=every_op), every_op=every_op)
        == outcomes(chunks, decode_chunk, every_op=every_op)
        for every_op in (True, False)
    )


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
