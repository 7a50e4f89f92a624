"""The only place that turns nanoseconds, bytes and shares into words, and back."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

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
    """A share of one as a percentage: `12.3 %`. What is not all is never `100.0 %`."""
    text = f"{share * 100:.1f} %"
    return "over 99.9 %" if share < 1 and text == "100.0 %" else text


def of_step(share: float) -> str:
    """A share of the mean step, and that it is one."""
    return f"{percent(share)} of the step"


def signed_percent(share: float) -> str:
    """A difference as a percentage: `+1.2 %`; what rounds to nothing has no sign."""
    tenths = round(share * 1000)
    return f"{tenths / 10:+.1f} %" if tenths else "0.0 %"


def gbps(bytes_per_second: float) -> str:
    """Bytes per second in decimal gigabytes, as bandwidths are quoted."""
    return f"{_three_digits(bytes_per_second / 1e9)} GB/s"


def count(number: int, noun: str) -> str:
    """A number with its noun, plural where it is one: `1 unit`, `3 units`."""
    if number == 1:
        return f"{number:,} {noun}"
    ending = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:,} {noun}{ending}"


_QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)\s*([A-Za-z/]*)")
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": KIB, "m": MIB, "g": GIB, "t": TIB}

_SIZES = {
    "": 1,
    **{f"{letter}b": factor for letter, factor in _DECIMAL.items()},
    **{f"{letter}ib": factor for letter, factor in _BINARY.items()},
    **_BINARY,  # "80g" of device memory means GiB everywhere
}
_RATES = {
    f"{letter}{unit}{per}": factor / bits
    for prefix, factor in _DECIMAL.items()
    for letter in ({"k", "K"} if prefix == "k" else {prefix.upper()})
    for unit, bits in (("B", 1), ("b", 8))
    for per in ("/s", "ps")
}
_NUMBERS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_DURATIONS = {"ns": 1, "us": US, "ms": MS, "s": SECOND}


def parse_size(text: str) -> int | None:
    """Bytes: `80GiB`, `512MB`, `1.5g`. GB is decimal, GiB and G are binary."""
    count = _parsed(text.lower(), _SIZES)
    return None if count is None else round(count)


def parse_number(text: str) -> int | None:
    """How many: `7B` is seven billion, `350m`, `1.3e9`."""
    number = _parsed(text.lower(), _NUMBERS)
    return None if number is None else round(number)


def parse_rate(text: str) -> float | None:
    """Bytes per second: `25GB/s`; of bits where the b is small: `200Gb/s`, `200Gbps`.

    Prefixes are decimal, as bandwidths are quoted.
    """
    return _parsed(text, _RATES)


def parse_duration(text: str) -> int | None:
    """Nanoseconds: `10us`, `1.5ms`."""
    ns = _parsed(text, _DURATIONS)
    return None if ns is None else round(ns)


def _parsed(text: str, factors: Mapping[str, float]) -> float | None:
    """A number times the factor of its unit; None where it is no such quantity."""
    found = _QUANTITY.fullmatch(text.strip())
    if found is None or found[2] not in factors:
        return None
    value = float(found[1]) * factors[found[2]]
    return value if math.isfinite(value) else None
