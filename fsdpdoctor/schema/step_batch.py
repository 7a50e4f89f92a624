"""One recorded step as one batch of a rank's Arrow stream.

The recorder uses it, so: numpy and nanoarrow only. See [Note: A run on disk] in
`schema`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import nanoarrow as na
import numpy as np
from nanoarrow.ipc import StreamWriter

from fsdpdoctor.schema import (
    STREAM_RANK,
    STREAM_RUN_ID,
    RankHeader,
    StepRecord,
    StepTimes,
    Table,
)
from fsdpdoctor.schema.step_record import NAMES, SCALARS, TABLES

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


def origin_of(header: RankHeader) -> dict[str, str]:
    """What a stream says of whose it is, in its schema's metadata."""
    if not header.run_id:
        return {}
    return {STREAM_RUN_ID: header.run_id, STREAM_RANK: str(header.rank)}


def batch_of(
    record: StepRecord, names: Sequence[str], origin: Mapping[str, str] | None = None
) -> Any:
    """A step, and the names that it used first. `origin` is for a stream's first."""
    scalars = [
        na.c_array_from_buffers(
            _INT64_C,
            1,
            [None, np.array([int(getattr(record, name))], dtype=np.int64)],
        )
        for name in SCALARS
    ]
    tables = [_table_array(name, getattr(record, name)) for name in TABLES]
    schema = _BATCH_C.modify(metadata=origin) if origin else _BATCH_C
    return na.c_array_from_buffers(
        schema, 1, [None], children=[*scalars, *tables, _names_array(names)]
    )


def stream_of_first(batch: Any) -> bytes:
    """The beginning of a stream: what its columns are, and its first batch."""
    content = io.BytesIO()
    StreamWriter.from_writable(content).write_array(batch)
    return content.getvalue()


def with_times(stream: bytes, times: StepTimes, names: Sequence[str]) -> bytes:
    """The beginning of a stream, whose first batch also has the times of the steps
    before it, and their names. Raises ValueError or RuntimeError on other content.
    """
    first = na.c_array(next(iter(na.ArrayStream.from_readable(io.BytesIO(stream)))))
    columns = [first.child(i) for i in range(first.n_children)]
    columns[[*SCALARS, *TABLES].index("unrecorded")] = _table_array("unrecorded", times)
    columns[-1] = _names_array(names)
    origin = first.schema.metadata
    schema = _BATCH_C.modify(metadata=dict(origin.items())) if origin else _BATCH_C
    return stream_of_first(na.c_array_from_buffers(schema, 1, [None], children=columns))


def head_of(stream: bytes) -> int:
    """How many bytes of a stream say what its columns are: a message without a body."""
    return 8 + int.from_bytes(stream[4:8], "little")
