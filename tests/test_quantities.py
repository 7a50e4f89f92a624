"""Words for nanoseconds, bytes and shares."""

from __future__ import annotations

import pytest

from fsdpdoctor.quantities import (
    GIB,
    KIB,
    MIB,
    MS,
    SECOND,
    US,
    count,
    duration,
    gbps,
    ms,
    parse_duration,
    parse_number,
    parse_rate,
    parse_size,
    percent,
    signed_percent,
    size,
)


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (0, "0 ms"),
        (1_500, "0.0015 ms"),
        (120_000, "0.120 ms"),
        (MS, "1.00 ms"),
        (12_345_678, "12.3 ms"),
        (99_960_000, "100 ms"),
        (1_234 * MS, "1,234 ms"),
        (-12_345_678, "-12.3 ms"),
    ],
)
def test_milliseconds(ns: int, words: str) -> None:
    """Three significant digits; what is under a millisecond keeps its digits."""
    assert ms(ns) == words


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (12, "12 ns"),
        (1_500, "1.50 us"),
        (12 * MS, "12.0 ms"),
        (90 * SECOND, "90.0 s"),
        (200 * SECOND, "3 min"),
        (12_000 * SECOND, "3 h 20 min"),
    ],
)
def test_durations(ns: int, words: str) -> None:
    """The unit that reads best."""
    assert duration(ns) == words


def test_sizes_shares_and_counts() -> None:
    """Binary bytes, decimal bandwidth, plural nouns."""
    assert [size(n) for n in (12, 640 * KIB, 3 * GIB // 2)] == [
        "12 B",
        "640 KiB",
        "1.50 GiB",
    ]
    assert gbps(25e9) == "25.0 GB/s"
    assert percent(0.1234) == "12.3 %"
    assert [percent(share) for share in (0.9994, 0.9998, 1.0)] == [
        "99.9 %",
        "over 99.9 %",
        "100.0 %",
    ]
    assert signed_percent(0.0123) == "+1.2 %"
    assert signed_percent(-0.0123) == "-1.2 %"
    assert signed_percent(-0.0004) == "0.0 %"
    assert [count(n, "unit") for n in (1, 2, 1000)] == [
        "1 unit",
        "2 units",
        "1,000 units",
    ]


@pytest.mark.parametrize(
    ("text", "in_bytes"),
    [
        ("80GiB", 80 * GIB),
        ("80g", 80 * GIB),
        (" 1.5 G ", 3 * GIB // 2),
        ("512MB", 512_000_000),
        ("512mib", 512 * MIB),
        ("3 kb", 3000),
        ("12B", 12),
        ("12", 12),
        ("1e3", 1000),
        ("much", None),
        ("80 GiBs", None),
        ("-1", None),
        ("1e400", None),
        ("", None),
    ],
)
def test_a_size_is_read(text: str, in_bytes: int | None) -> None:
    """GB is decimal; GiB and a bare G are binary; case says nothing."""
    assert parse_size(text) == in_bytes


@pytest.mark.parametrize(
    ("text", "per_second"),
    [
        ("25GB/s", 25e9),
        ("200Gb/s", 25e9),
        ("200Gbps", 25e9),
        ("1.5 KB/s", 1500),
        ("8kbps", 1000),
        ("7B/s", 7),
        ("25gB/s", None),
        ("25", None),
        ("25GB", None),
    ],
)
def test_a_rate_is_read(text: str, per_second: float | None) -> None:
    """A small b is a bit; a number alone is no rate."""
    assert parse_rate(text) == per_second


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7B", 7 * 10**9),
        ("1.3e9", 1_300_000_000),
        ("350m", 350 * 10**6),
        ("4000", 4000),
        ("7G", None),
    ],
)
def test_a_number_is_read(text: str, number: int | None) -> None:
    """B is a billion, as in the names of models."""
    assert parse_number(text) == number


@pytest.mark.parametrize(
    ("text", "ns"),
    [("10us", 10 * US), ("1.5ms", 1500 * US), ("2 s", 2 * SECOND), ("10", None)],
)
def test_a_duration_is_read(text: str, ns: int | None) -> None:
    """With its unit, never without."""
    assert parse_duration(text) == ns
