"""A recorded step as the bytes of one Arrow message, as `StreamWriter` writes it.

All steps of a stream have one schema, so their messages differ in the lengths of
their columns and in what follows: the first is nanoarrow's own, the others fill in
its numbers. A step has a hundred arrays, and to make each one's object takes longer
than everything else that is done to write it, while somebody's training waits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.schema import StepRecord, Table
from fsdpdoctor.schema.step_batch import head_of
from fsdpdoctor.schema.step_record import SCALARS, TABLES

_PREFIX = 8  # 0xFFFFFFFF, and the length of the metadata
_ALIGNED = 8
_HEADER, _BODY_LENGTH = 2, 3  # fields of Message, in Arrow's Message.fbs
_NODES, _BUFFERS = 1, 2  # of RecordBatch


def messages_like(
    stream: bytes, record: StepRecord, names: Sequence[str]
) -> Messages | None:
    """What writes messages as the first one of a stream, of this step; None where that
    one would come out otherwise than it is.
    """
    pattern = stream[head_of(stream) :]
    try:
        messages = Messages(pattern)
        return messages if messages.of(record, names) == pattern else None
    except (ValueError, IndexError, struct.error):
        return None


class _Column(NamedTuple):
    """An array without its children, as a message holds it."""

    length: int
    buffers: tuple[bytes | memoryview, ...]  # without the validity, which all lack


class Messages:
    """Writes steps' messages after the pattern of one."""

    def __init__(self, pattern: bytes) -> None:
        """Of a message that nanoarrow has written. Raises ValueError where it is none
        of a step's, IndexError and struct.error where it is cut off.
        """
        (length,) = struct.unpack_from("<i", pattern, 4)
        self._metadata = bytearray(pattern[: _PREFIX + length])
        message = _Fields(self._metadata, _PREFIX)
        batch = message.inner(_HEADER)
        self._body_length_at = message.at(_BODY_LENGTH)
        self._nodes = batch.pairs(_NODES)
        self._buffers = batch.pairs(_BUFFERS)

    def of(self, record: StepRecord, names: Sequence[str]) -> bytes:
        """The message of a step, and of the names that it used first. Raises ValueError
        where the pattern has other columns.
        """
        columns = list(_columns(record, names))
        self._nodes[:, 0] = [column.length for column in columns]
        pieces: list[bytes | memoryview] = []
        for column in columns:
            pieces += (b"", *column.buffers)
        lengths = np.array([len(piece) for piece in pieces])
        padded = -(-lengths // _ALIGNED) * _ALIGNED
        self._buffers[:, 1] = lengths
        self._buffers[0, 0] = 0
        ends = np.cumsum(padded)
        self._buffers[1:, 0] = ends[:-1]
        struct.pack_into("<q", self._metadata, self._body_length_at, int(ends[-1]))
        whole: list[bytes | bytearray | memoryview] = [self._metadata]
        for piece, padding in zip(pieces, (padded - lengths).tolist(), strict=True):
            whole.append(piece)
            if padding:
                whole.append(bytes(padding))
        return b"".join(whole)


def _columns(record: StepRecord, names: Sequence[str]) -> Iterator[_Column]:
    """In the order of the schema, each before its children."""
    for name in SCALARS:
        yield _Column(1, (struct.pack("<q", int(getattr(record, name))),))
    for name in TABLES:
        table: Table = getattr(record, name)
        length = len(table)
        yield _Column(1, (struct.pack("<ii", 0, length),))
        yield _Column(length, ())
        for column in table.columns():
            values = np.ascontiguousarray(getattr(table, column))
            yield _Column(length, (values.data.cast("B"),))
    encoded = [name.encode("utf-8", "replace") for name in names]
    ends = np.cumsum([0, *map(len, encoded)]).astype("<i4")
    yield _Column(1, (struct.pack("<ii", 0, len(encoded)),))
    yield _Column(len(encoded), (ends.tobytes() if encoded else b"", b"".join(encoded)))


class _Fields:
    """A table of FlatBuffers: numbers at places that a table beside it tells."""

    def __init__(self, data: bytearray, start: int) -> None:
        self._data = data
        (to,) = struct.unpack_from("<I", data, start)
        self._table = start + to

    def at(self, field: int) -> int:
        """Where a field is."""
        (back,) = struct.unpack_from("<i", self._data, self._table)
        places = self._table - back
        (size,) = struct.unpack_from("<H", self._data, places)
        entry = 4 + 2 * field
        place = 0
        if entry < size:
            (place,) = struct.unpack_from("<H", self._data, places + entry)
        if place == 0:
            raise ValueError(f"a message without field {field}")
        return int(self._table + place)

    def inner(self, field: int) -> _Fields:
        """The table that a field leads to."""
        return _Fields(self._data, self.at(field))

    def pairs(self, field: int) -> npt.NDArray[np.int64]:
        """A vector of pairs of 64-bit numbers, (N, 2), in place."""
        at = self.at(field)
        (to,) = struct.unpack_from("<I", self._data, at)
        (count,) = struct.unpack_from("<I", self._data, at + to)
        found = np.frombuffer(self._data, "<i8", 2 * count, at + to + 4)
        return found.reshape(count, 2)
