"""Event files, byte by byte; TensorBoard's own reader is in test_tensorboard.py."""

from __future__ import annotations

import struct

from fsdpdoctor.integrations.event_file import Scalar, Text, _checksum, event_file

CHECKED = b"123456789"
"""Its CRC-32C is 0xE3069283, as every definition of it says."""


def masked(crc: int) -> bytes:
    """A checksum as records hold it."""
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def records(content: bytes) -> list[bytes]:
    """What the records of a file hold; each is as long as it says."""
    found = []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        found.append(content[12 : 12 + length])
        content = content[16 + length :]
    return found


def test_a_file_says_its_version_first() -> None:
    """And nothing else where there is nothing."""
    version = b"\x1a\x0dbrain.Event:2"
    assert records(event_file([], 2.5)) == [b"\x09" + struct.pack("<d", 2.5) + version]


def test_a_record_has_its_checksums() -> None:
    """Of its length and of its content: the ones that every CRC-32C gives."""
    assert _checksum(CHECKED) == masked(0xE3069283)
    content = event_file([], 0.0)
    assert content[8:12] == _checksum(content[:8])
    assert content[-4:] == _checksum(content[12:-4])


def test_a_scalar_and_a_text_are_events() -> None:
    """Field by field of protobuf's wire format, a step above 127 in two bytes."""
    point = Scalar(tag="a/b", step=300, value=1.5, time_s=4.0)
    text = Text(tag="t", text="**x**", time_s=4.0)
    _, scalar, said = records(event_file([point, text], 0.0))
    time = b"\x09" + struct.pack("<d", 4.0)

    value = b"\x0a\x03a/b" + b"\x15" + struct.pack("<f", 1.5)
    summary = b"\x0a" + bytes([len(value)]) + value
    assert scalar == time + b"\x10\xac\x02" + b"\x2a" + bytes([len(summary)]) + summary
    assert said.startswith(time + b"\x2a")
    assert b"\x08\x07\x12\x04\x12\x02\x08\x01\x42\x05**x**" in said  # one string
    assert said.endswith(b"\x4a\x08\x0a\x06\x0a\x04text")
