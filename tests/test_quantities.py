"""Words for nanoseconds, bytes and shares."""

from __future__ import annotations

import pytest

from fsdpdoctor.quantities import (
    GIB,
    KIB,
    MS,
    SECOND,
    count,
    duration,
    gbps,
    ms,
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
    assert signed_percent(0.0123) == "+1.2 %"
    assert signed_percent(-0.0123) == "-1.2 %"
    assert signed_percent(-0.0004) == "0.0 %"
    assert [count(n, "unit") for n in (1, 2, 1000)] == [
        "1 unit",
        "2 units",
        "1,000 units",
    ]
