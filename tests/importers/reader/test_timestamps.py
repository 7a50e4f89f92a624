"""Microseconds of a trace become whole nanoseconds, exactly, or the text decides."""

from __future__ import annotations

import pytest

from fsdpdoctor.importers.reader.timestamps import (
    few_decimals,
    ns_of_numbers,
    ns_of_text,
)
from fsdpdoctor.schema import NO_TIME


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"0", 0),
        (b"12.5", 12_500),
        (b"1694128201429795.123", 1_694_128_201_429_795_123),
        (b"0.0005", 1),
        (b"-0.0005", -1),
        (b"1e3", 1_000_000),
        (b"nan", NO_TIME),
        (b"1e999", NO_TIME),
        (b"1E-32233471471253291349", 0),  # further than Decimal goes
        (b"1E+32233471471253291349", NO_TIME),
        (b"\xff", NO_TIME),
        (b"4611686018427388", NO_TIME),
    ],
)
def test_text(text: bytes, ns: int) -> None:
    """Halves go away from zero; what is no time of this world is none."""
    assert ns_of_text(text) == ns


@pytest.mark.parametrize(
    ("chunk", "few"),
    [
        (b'{"ts": 12.345, "dur": 1}', True),
        (b'{"ts": 12.3456}', False),
        (b'{"ts": 1, "dur" : -0.0001}', False),
        (b'{"x": 12.3456}', True),
    ],
)
def test_decimals(chunk: bytes, few: bool) -> None:
    """Only those of times and durations count."""
    assert few_decimals(chunk) is few


@pytest.mark.parametrize(
    ("values", "ns"),
    [
        ([], []),
        ([0, 7, -3], [0, 7_000, -3_000]),
        ([12.345, 0.001, 4954104754192.022], [12_345, 1, 4_954_104_754_192_022]),
        ([2**51], [2**51 * 1000]),
        ([2**62], None),  # would not fit as nanoseconds
        ([2.0**43], None),  # from here a float may be off
        ([1.5, float("nan")], None),
        ([0.0004], None),  # a fourth decimal
    ],
)
def test_numbers(values: list[int | float], ns: list[int] | None) -> None:
    """Whole and exact, or None: then the text has to be decoded."""
    found = ns_of_numbers(values)

    assert (None if found is None else found.tolist()) == ns
