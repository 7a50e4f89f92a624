"""Whole numbers in an address: read with limits, refused in words."""

from __future__ import annotations

from collections.abc import Mapping

Args = Mapping[str, str]

MOST = 1 << 62
"""Beyond it a sum of two would not fit into 64 bits."""

MOST_NUMBERS = 20_000
"""In one list: no address that a browser sends holds more."""


class BadQueryError(ValueError):
    """A query that this page's own script would not have sent."""


def whole(args: Args, name: str, default: int | None = None) -> int:
    """A whole number. Raises BadQueryError."""
    given = args.get(name)
    if given is None and default is not None:
        return default
    try:
        number = int(given or "")
    except ValueError:
        raise BadQueryError(f"{name} must be a whole number") from None
    if not -MOST <= number < MOST:
        raise BadQueryError(f"{name} is out of range")
    return number


def wholes(args: Args, name: str) -> list[int]:
    """Whole numbers with commas between, each once. Raises BadQueryError."""
    parts = [part for part in args.get(name, "").split(",", MOST_NUMBERS) if part]
    if len(parts) > MOST_NUMBERS:
        raise BadQueryError(f"{name} must be at most {MOST_NUMBERS} numbers")
    try:
        numbers = list(dict.fromkeys(int(part) for part in parts))
    except ValueError:
        raise BadQueryError(f"{name} must be whole numbers with commas") from None
    if not all(-MOST <= number < MOST for number in numbers):
        raise BadQueryError(f"{name} is out of range")
    return numbers
