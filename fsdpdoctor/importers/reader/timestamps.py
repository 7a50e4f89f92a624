"""Microseconds as traces write them, to whole nanoseconds, exactly.

A float64 cannot hold an epoch in microseconds with its decimals (it is off by up
to 128 ns), so a number's text decides wherever the float might be wrong.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt

from fsdpdoctor.schema import NO_TIME

EXACT_BELOW_US = 2.0**43
"""A float64 below this has a step of at most 1/1024 us: the nearest one to a number
of three decimals is less than half a nanosecond away, so that rounding finds it.
Kineto's times since its base time (at most three months) are below."""

LIMIT_NS = 2**62
"""Times and durations of more (146 years) are damage; below it, sums fit int64."""

_MANY_DECIMALS = re.compile(rb'"(?:ts|dur)"\s*:\s*-?\d+\.\d{4}')
_SAMPLE_BYTES = 1 << 16
"""Where decimals are counted, of each chunk. A writer formats all its numbers alike."""


def ns_of_text(text: bytes) -> int:
    """Nanoseconds of a JSON number in microseconds, halves away from zero.

    NO_TIME where it is no number, or none that fits.
    """
    try:
        value = Decimal(text.decode("ascii"))
        if not value.is_finite() or value.adjusted() > 18:
            return NO_TIME
        ns = int((value * 1000).quantize(Decimal(1), rounding=ROUND_HALF_UP))
    except UnicodeDecodeError:
        return NO_TIME
    except InvalidOperation:  # no number, or of an exponent past those of Decimal
        return 0 if _is_nothing(text) else NO_TIME
    return ns if abs(ns) < LIMIT_NS else NO_TIME


def _is_nothing(text: bytes) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False


def few_decimals(chunk: bytes) -> bool:
    """Whether a chunk's times have at most three decimals, as Kineto's do."""
    return _MANY_DECIMALS.search(chunk, 0, _SAMPLE_BYTES) is None


def ns_of_numbers(values: list[int | float]) -> npt.NDArray[np.int64] | None:
    """Nanoseconds of decoded numbers of at most three decimals.

    None where that would not be exact: decode the text instead.
    """
    array = np.array(values)
    if array.dtype == np.int64:
        if len(array) and int(np.abs(array).max()) >= LIMIT_NS // 1000:
            return None
        return np.asarray(array * 1000, dtype=np.int64)
    if len(array) == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype != np.float64 or not np.isfinite(array).all():
        return None
    if float(np.abs(array).max()) >= EXACT_BELOW_US:
        return None
    whole = np.floor(array)
    part = (array - whole) * 1000
    rounded = np.rint(part)
    # What a number of three decimals can be off by; the rest is rounding of `part`.
    allowed = np.spacing(np.abs(array)) * 500 + 1e-9
    if (np.abs(part - rounded) > allowed).any():
        return None
    return np.asarray(whole.astype(np.int64) * 1000 + rounded.astype(np.int64))
