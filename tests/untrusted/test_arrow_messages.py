"""Lengths that a message states and its body does not have are seen before any reader
believes them.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fsdpdoctor.run import open_run
from fsdpdoctor.untrusted.arrow_messages import sound_length
from tests.dashboard.synthetic import Shape, write_run

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
