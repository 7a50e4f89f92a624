"""Lengths that a message states and its body does not have are seen before any reader
believes them.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fsdpdoctor.run import open_run
from fsdpdoctor.untrusted.arrow_messages import (
    LyingMessageError,
    SchemaParts,
    sound_length,
)
from tests.dashboard.synthetic import Shape, write_run
from tests.rig.ranks import run_python

LARGEST = (1 << 63) - 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks and three steps."""
    folder: Path = tmp_path_factory.mktemp("runs") / "run"
    write_run(folder, Shape(ranks=2, layers=2, steps=3, kernels=1))
    return folder


@pytest.fixture(scope="module")
def stream(folder: Path) -> bytes:
    """What one rank recorded."""
    return (folder / "rank00001.arrows").read_bytes()


def messages(stream: bytes) -> list[tuple[int, int]]:
    """Where each step's message and its body begin: all have messages of one length."""
    (schema,) = struct.unpack_from("<i", stream, 4)
    begins = stream[8 + schema : 16 + schema]
    (length,) = struct.unpack_from("<i", begins, 4)
    found, at = [], stream.find(begins)
    while at >= 0:
        found.append((at, at + 8 + length))
        at = stream.find(begins, at + 1)
    return found


def put(stream: bytes, at: int, number: int) -> bytes:
    """A stream with another 64-bit number somewhere."""
    return stream[:at] + struct.pack("<q", number) + stream[at + 8 :]


def test_what_was_recorded_is_sound(stream: bytes) -> None:
    """All of it, and up to the last whole step where it is cut."""
    ends = [0, *(begin for begin, _ in messages(stream)), len(stream) - 8, len(stream)]

    assert len(messages(stream)) == 3
    assert sound_length(stream) == (len(stream), None)
    for length in range(0, len(stream), 97):
        whole, wrong = sound_length(stream[:length])
        assert whole == max(end for end in ends if end <= length)
        assert (wrong is None) == (whole == length)


@pytest.mark.parametrize("number", [LARGEST, -LARGEST - 1, 1 << 40])
def test_no_length_is_beyond_its_body(stream: bytes, number: int) -> None:
    """Each number of the second step's message that is a length or an offset."""
    begin, body = messages(stream)[1]
    found = {
        at: sound_length(put(stream, at, number)) for at in range(begin + 8, body, 8)
    }
    refused = {at for at, (_, wrong) in found.items() if wrong is not None}

    assert {length for length, _ in found.values()} == {begin, len(stream)}
    assert len(refused) > 370
    assert len(found) - len(refused) <= 3  # what pads it, and what nobody reads


@pytest.mark.parametrize(
    ("at", "new", "words"),
    [
        (0, b"\0\0\0\0", "a message does not begin where one should"),
        (4, b"\xf0\xff\xff\xff", "a message does not begin where one should"),
        (8, b"\xff\xff\xff\xff", "a message is damaged: "),
    ],
)
def test_where_a_message_begins(stream: bytes, at: int, new: bytes, words: str) -> None:
    """What is no message is not read, nor anything after it."""
    begin, _ = messages(stream)[1]
    changed = stream[: begin + at] + new + stream[begin + at + 4 :]
    length, wrong = sound_length(changed)

    assert length == begin
    assert (wrong or "").startswith(words)


EVERYTHING = """
import io, struct, sys
import nanoarrow as na
from fsdpdoctor.untrusted.arrow_messages import sound_length
stream = open(sys.argv[1], "rb").read()
(length,) = struct.unpack_from("<i", stream, 4)
for at in range(8, 8 + length, 4):
    (word,) = struct.unpack_from("<I", stream, at)
    for other in (0, word ^ 16, (word + 4) % (1 << 32), (word - 8) % (1 << 32)):
        changed = stream[:at] + struct.pack("<I", other) + stream[at + 4 :]
        sound, _ = sound_length(changed)
        try:
            for batch in na.ArrayStream.from_readable(io.BytesIO(changed[:sound])):
                batch.schema
        except (RuntimeError, ValueError):
            pass
print("read or refused")
"""


def test_no_word_of_a_schema_ends_the_process(folder: Path) -> None:
    """Each in turn is another: nanoarrow 0.9 follows a null pointer for some."""
    path = str(folder / "rank00001.arrows")

    finished = run_python("-c", EVERYTHING, path).ok()

    assert finished.stdout == "read or refused\n"


def strings_of_notes(stream: bytes) -> list[int]:
    """Where the first of a schema's notes says that it has a key, and a value."""
    at = stream.index(b"fsdpdoctor.rank\x00") - 4  # of the key's length
    (note,) = (
        here
        for here in range(8, at, 4)
        if here + 4 + struct.unpack_from("<I", stream, here + 4)[0] == at
        and stream[here - struct.unpack_from("<i", stream, here)[0]] in (8, 10, 12)
    )
    vtable = note - struct.unpack_from("<i", stream, note)[0]
    return [vtable + 4, vtable + 6]


@pytest.mark.parametrize("which", [0, 1], ids=["key", "value"])
def test_notes_have_a_key_and_a_value(stream: bytes, which: int) -> None:
    """Metadata without a key ended `analyze` in a segmentation fault."""
    at = strings_of_notes(stream)[which]
    changed = stream[:at] + b"\0\0" + stream[at + 2 :]

    sound, wrong = sound_length(changed)

    missing = "its metadata lacks a key or a value"
    assert (sound, wrong) == (0, f"a message is damaged: {missing}")


def test_many_columns_may_not_share_one_place() -> None:
    """Three lists of a thousand, each a thousand times the next: a billion columns."""
    schema_parts = struct.pack("<4H", 8, 8, 0, 4)
    field_parts = struct.pack("<8H", 16, 20, 4, 0, 16, 8, 0, 12)
    data = bytearray(schema_parts + field_parts)
    schema = len(data)
    data += struct.pack("<iI", schema, 4)
    for _ in range(3):
        data += struct.pack("<I", 1000)
        data += struct.pack("<1000I", *range(4000, 0, -4))  # all to what comes next
        table = len(data)
        data += struct.pack("<iIIIBxxx", table - len(schema_parts), 4, 4, 8, 2)
    data += struct.pack("<I", 0)

    with pytest.raises(LyingMessageError, match="over 10000 parts"):
        SchemaParts(bytes(data)).check(schema)


def test_a_rank_whose_stream_lies_keeps_its_steps(folder: Path, stream: bytes) -> None:
    """Nanoarrow 0.9 ends the process where a list has so many rows."""
    begin, body = messages(stream)[1]
    numbers = range(begin + 8, body, 8)
    lying = next(
        changed
        for at in numbers
        if (sound_length(changed := put(stream, at, LARGEST))[1] or "").endswith("hold")
    )
    path = folder / "rank00001.arrows"
    path.write_bytes(lying)
    try:
        data = open_run(folder).sources[1].load()
    finally:
        path.write_bytes(stream)

    assert len(data.steps) == 1
    assert "breaks off: a message is damaged: a column has more" in str(data.truncated)
