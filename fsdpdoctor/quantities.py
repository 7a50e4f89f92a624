"""The only place that turns nanoseconds, bytes and shares into words."""

from __future__ import annotations

US = 1_000
"""Nanoseconds in a microsecond."""
MS = 1_000_000
"""Nanoseconds in a millisecond."""
SECOND = 1_000_000_000
"""Nanoseconds in a second."""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

NOT_MEASURED = "not measured"
"""What every front end prints for a value that the source cannot know."""


def _three_digits(value: float) -> str:
    """Three significant digits, never in exponent form: 1234, 123, 12.3, 1.23."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"


def ms(ns: float) -> str:
    """Nanoseconds as milliseconds: `12.3 ms`. Small times keep their digits."""
    size = abs(ns)
    if size == 0:
        return "0 ms"
    if size < 5 * US:
        return f"{ns / MS:.4f} ms"
    if size < MS:
        return f"{ns / MS:.3f} ms"
    return f"{_three_digits(ns / MS)} ms"


def duration(ns: float) -> str:
    """Nanoseconds in the unit that reads best, from `12 ns` to `3 h 20 min`."""
    size = abs(ns)
    if size < US:
        return f"{ns:.0f} ns"
    if size < MS:
        return f"{_three_digits(ns / US)} us"
    if size < SECOND:
        return f"{_three_digits(ns / MS)} ms"
    if size < 120 * SECOND:
        return f"{_three_digits(ns / SECOND)} s"
    minutes = round(ns / SECOND / 60)
    if abs(minutes) < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def size(count: float) -> str:
    """Bytes in binary units: `1.50 GiB`, `640 KiB`, `12 B`."""
    magnitude = abs(count)
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if magnitude >= unit:
            return f"{_three_digits(count / unit)} {name}"
    return f"{count:.0f} B"


def percent(share: float) -> str:
    """A share of one as a percentage: `12.3 %`."""
    return f"{share * 100:.1f} %"


def signed_percent(share: float) -> str:
    """A difference as a percentage: `+1.2 %`; what rounds to nothing has no sign."""
    tenths = round(share * 1000)
    return f"{tenths / 10:+.1f} %" if tenths else "0.0 %"


def gbps(bytes_per_second: float) -> str:
    """Bytes per second in decimal gigabytes, as bandwidths are quoted."""
    return f"{_three_digits(bytes_per_second / 1e9)} GB/s"


def count(number: int, noun: str) -> str:
    """A number with its noun, plural where it is one: `1 unit`, `3 units`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
