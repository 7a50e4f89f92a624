"""What a message of an Arrow stream may say of its own body.

nanoarrow believes the lengths that a record batch states, and reads past its body
where they are out of range (0.9: a list of 2^63 - 1 rows ends the process). So they are
looked at before it sees them. So is a schema: what may be left out of a flatbuffer is a
null pointer there (0.9: metadata without a key ends the process, too). The layout is
Arrow's IPC format: a continuation mark, the length of a flatbuffer, the flatbuffer, the
body.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_CONTINUES = 0xFFFFFFFF
_SCHEMA, _RECORD_BATCH = 1, 3  # MessageHeader
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3  # fields of Message
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3  # fields of RecordBatch
_FIELDS, _NOTES = 1, 2  # fields of Schema
_NAME, _TYPE_TYPE, _TYPE, _DICTIONARY, _CHILDREN, _FIELD_NOTES = 0, 2, 3, 4, 5, 6
_PLAIN_TYPES = frozenset({1, 2, 3, 4, 5, 6, 12, 13, 15, 16, 19, 20, 21})
"""Of Type: numbers, booleans, texts, bytes, lists and structs. None has a part that may
be left out and is asked for all the same."""
_MOST_TABLES = 10_000
"""Of a schema, which has a hundred or two: many may share one place in the message."""
_PREFIX = 8  # bytes before a message's flatbuffer
_BITS = 8  # the least that a row takes of a body is one of a byte's


class LyingMessageError(ValueError):
    """A message states what its body cannot hold."""


def sound_length(stream: bytes) -> tuple[int, str | None]:
    """How many bytes of a stream are whole and sound messages, and what is wrong with
    the rest; None where there is none. A stream need not have its end's mark: that of
    a rank which runs, or was killed, has not.
    """
    at = 0
    while at + _PREFIX <= len(stream):
        mark, length = struct.unpack_from("<Ii", stream, at)
        if mark == _CONTINUES and length == 0:
            return at + _PREFIX, None
        if mark != _CONTINUES or length < 0:
            return at, "a message does not begin where one should"
        metadata = stream[at + _PREFIX : at + _PREFIX + length]
        try:
            body = _body_length(metadata) if len(metadata) == length else 0
        except (LyingMessageError, struct.error) as error:
            return at, f"a message is damaged: {error}"
        end = at + _PREFIX + length + body
        if end > len(stream):
            return at, f"its last message has {len(stream) - at} of {end - at} bytes"
        at = end
    return at, None if at == len(stream) else "its last message has no length"


def _body_length(metadata: bytes) -> int:
    """Of a message, whose lengths were looked at. Raises where it lies."""
    message = _u32(metadata, 0)
    kind_at = _field(metadata, message, _HEADER_TYPE)
    header_at = _field(metadata, message, _HEADER)
    length_at = _field(metadata, message, _BODY_LENGTH)
    if kind_at is None or header_at is None:
        raise LyingMessageError("it has no header")
    (body,) = struct.unpack_from("<q", metadata, length_at) if length_at else (0,)
    if body < 0:
        raise LyingMessageError(f"its body has {body} bytes")
    kind = metadata[kind_at]
    if kind == _RECORD_BATCH:
        batch = header_at + _u32(metadata, header_at)
        _check_batch(metadata, batch, body)
    elif kind == _SCHEMA:
        SchemaParts(metadata).check(header_at + _u32(metadata, header_at))
    else:
        raise LyingMessageError(f"it is of kind {kind}, which no recorder writes")
    return int(body)


class SchemaParts:
    """A schema's flatbuffer: whether all is there that is asked for without a look."""

    def __init__(self, metadata: bytes) -> None:
        self._metadata = metadata
        self._left = _MOST_TABLES

    def check(self, schema: int) -> None:
        """Raises where it is not."""
        self._check_notes(schema, _NOTES)
        waiting = [*self._tables(schema, _FIELDS)]
        while waiting:
            field = waiting.pop()
            self._check_field(field)
            waiting.extend(self._tables(field, _CHILDREN))

    def _check_field(self, field: int) -> None:
        if self._part(field, _NAME) is None:
            raise LyingMessageError("a column has no name")
        type_at = self._part(field, _TYPE_TYPE)
        if type_at is None or self._part(field, _TYPE) is None:
            raise LyingMessageError("a column has no type")
        kind = self._metadata[type_at]
        if kind not in _PLAIN_TYPES:
            raise LyingMessageError(f"a column is of type {kind}, which nobody records")
        if self._part(field, _DICTIONARY) is not None:
            raise LyingMessageError("a column is of a dictionary, which nobody records")
        self._check_notes(field, _FIELD_NOTES)

    def _check_notes(self, table: int, number: int) -> None:
        for note in self._tables(table, number):
            if None in (self._part(note, 0), self._part(note, 1)):
                raise LyingMessageError("its metadata lacks a key or a value")

    def _tables(self, table: int, number: int) -> Iterator[int]:
        """Where the tables of a vector stand, which is a part of another."""
        at = self._part(table, number)
        if at is None:
            return
        vector = at + _u32(self._metadata, at)
        count = _u32(self._metadata, vector)
        if vector + 4 + 4 * count > len(self._metadata):
            raise LyingMessageError("a list is longer than the message")
        for one in range(vector + 4, vector + 4 + 4 * count, 4):
            self._left -= 1
            if self._left < 0:
                raise LyingMessageError(f"its schema has over {_MOST_TABLES} parts")
            yield one + _u32(self._metadata, one)

    def _part(self, table: int, number: int) -> int | None:
        return _field(self._metadata, table, number)


def _check_batch(metadata: bytes, batch: int, body: int) -> None:
    if _field(metadata, batch, _COMPRESSION) is not None:
        raise LyingMessageError("it is compressed, which no recorder does")
    length_at = _field(metadata, batch, _LENGTH)
    rows = struct.unpack_from("<q", metadata, length_at)[0] if length_at else 0
    nodes = _pairs(metadata, _field(metadata, batch, _NODES))
    lengths, nulls = np.append(nodes[:, 0], rows), nodes[:, 1]
    if ((lengths < 0) | (lengths > _BITS * body)).any():
        raise LyingMessageError(f"a column has more rows than {body} bytes hold")
    if ((nulls < 0) | (nulls > nodes[:, 0])).any():
        raise LyingMessageError("a column has more nulls than rows")
    begin, size = _pairs(metadata, _field(metadata, batch, _BUFFERS)).T
    if ((begin < 0) | (begin > body) | (size < 0) | (size > body - begin)).any():
        raise LyingMessageError(f"a buffer is not within {body} bytes")


def _pairs(metadata: bytes, at: int | None) -> npt.NDArray[np.int64]:  # [N, 2]
    """A vector of structs of two 64-bit numbers."""
    if at is None:
        return np.empty((0, 2), dtype=np.int64)
    vector = at + _u32(metadata, at)
    count = _u32(metadata, vector)
    if vector + 4 + 16 * count > len(metadata):
        raise LyingMessageError("a list is longer than the message")
    found = np.frombuffer(metadata, "<i8", count=2 * count, offset=vector + 4)
    return found.reshape(count, 2)


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Where a field of a table stands; None: it has the default."""
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back
    if vtable < 0:
        raise LyingMessageError("a table lies outside of it")
    (size,) = struct.unpack_from("<H", metadata, vtable)
    at = 4 + 2 * number
    if at + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", metadata, vtable + at)
    if not offset:
        return None
    found: int = table + offset
    if found >= len(metadata):
        raise LyingMessageError("a field lies outside of it")
    return found


def _u32(metadata: bytes, at: int) -> int:
    (value,) = struct.unpack_from("<I", metadata, at)
    return int(value)
