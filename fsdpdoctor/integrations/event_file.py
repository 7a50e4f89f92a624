"""TensorBoard's event files: scalars and texts, without TensorBoard installed.

A file is a row of records (length, its checksum, bytes, their checksum), each of them
an `Event` in protobuf's wire format. Field numbers are of TensorBoard's `event.proto`,
`summary.proto` and `tensor.proto`, which have not changed since 2015.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

FILE_VERSION = "brain.Event:2"

_STRINGS = 7  # `DT_STRING`
_CASTAGNOLI = 0x82F63B78  # reflected
_MASK = 0xA282EAD8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A point of a chart."""

    tag: str
    step: int
    value: float
    time_s: float  # Unix time


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A Markdown text."""

    tag: str
    text: str
    time_s: float


def event_file(entries: Iterable[Scalar | Text], began_s: float) -> bytes:
    """The content of a file named `events.out.tfevents...`."""
    version = _double(1, began_s) + _text(3, FILE_VERSION)
    return b"".join([_record(version), *(_record(_event(one)) for one in entries)])


def _event(one: Scalar | Text) -> bytes:
    time = _double(1, one.time_s)
    if isinstance(one, Scalar):
        value = _text(1, one.tag) + _single(2, one.value)
        return time + _int(2, one.step) + _message(5, _message(1, value))
    shape = _message(2, _int(1, 1))
    tensor = _int(1, _STRINGS) + _message(2, shape) + _text(8, one.text)
    metadata = _message(1, _text(1, "text"))
    value = _text(1, one.tag) + _message(8, tensor) + _message(9, metadata)
    return time + _message(5, _message(1, value))


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _single(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    # A name from a foreign file may hold lone surrogates, which UTF-8 cannot.
    return _message(field, text.encode("utf-8", "replace"))


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _table() -> tuple[int, ...]:
    rows = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_CASTAGNOLI if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_ROWS = _table()


def _checksum(content: bytes) -> bytes:
    """CRC-32C, rotated and shifted as the format asks."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _ROWS[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
    return struct.pack("<I", masked)
