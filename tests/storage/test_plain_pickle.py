"""Pickles of plain data, and those that are more."""

from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import pytest

from fsdpdoctor.quantities import MIB
from fsdpdoctor.storage.plain_pickle import NotPlainError, load_plain

PLAIN: dict[str, Any] = {
    "": {},
    "numbers": [0, -1, 255, 65536, 1 << 31, 1 << 62, -(1 << 70), 1.5, True, None],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "words": ["a", "é\n", "x" * 300, "y" * 70_000],
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_comes_back(protocol: int) -> None:
    """Of every protocol, and one value in two places is one again."""
    found = load_plain(pickle.dumps([PLAIN, PLAIN], protocol=protocol))

    assert found == [PLAIN, PLAIN]
    assert isinstance(found, list)
    assert found[0] is found[1]


def test_many_distinct_values_come_back() -> None:
    """More than the memo's short slots hold, in every protocol that has them."""
    many = [[number, str(number)] for number in range(70_000)]

    for protocol in (1, 2, 4):
        assert load_plain(pickle.dumps(many, protocol=protocol)) == many


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "cut off"),
        (b"\x80\x04", "cut off"),
        (b"cposix\nsystem\n.", r"it asks for posix\.system"),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", r"it asks for posix\.system"),
        (b"(S'a'\niposix\nsystem\n.", r"it asks for posix\.system"),
        (b"\x80\x02NN\x81.", "no plain data"),  # NEWOBJ
        (b"\x80\x02K\x01Q.", "no plain data"),  # a persistent id
        (b"\x80\x02NNb.", "no plain data"),  # BUILD
        (b"\x80\x02\x8f.", "no plain data"),  # a set
        (b"\x80\x05\x96" + bytes(8) + b".", "no plain data"),  # a bytearray
        (b"NR.", "."),  # a call of what is no function
    ],
)
def test_what_is_no_plain_data_is_refused(content: bytes, why: str) -> None:
    """By its opcode, or by what it names."""
    with pytest.raises(NotPlainError, match=why):
        load_plain(content)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # a memo slot that takes 34 GB
        b"Np999999999\n.",
        b"\x80\x02j\xff\xff\xff\x7f.",
        b"\x80\x02" + b"]" * (16 << 20) + b".",  # 1.2 GB of lists
        b"\x80\x02" + b"}" * (16 << 20) + b".",
        b"\x80\x02N" + b"\x85" * (16 << 20) + b".",
        b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",  # a number of 2 GB
        b"\x80\x04\x8d" + b"\xff" * 7 + b"\x00.",  # words of exabytes
        b"\x80\x02X\xff\xff\xff\x7fabc.",
    ],
)
def test_memory_stays_in_proportion(content: bytes) -> None:
    """A few bytes that ask for gigabytes are refused before any is taken."""
    tracemalloc.start()
    with pytest.raises(NotPlainError):
        load_plain(content)
    assert tracemalloc.get_traced_memory()[1] < MIB
    tracemalloc.stop()
