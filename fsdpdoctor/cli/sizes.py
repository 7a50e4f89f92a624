"""Sizes as people write them on a command line: 80GiB, 512MB, 1.5g."""

from __future__ import annotations

import re

import click

_FACTORS = {"": 1}
for _power, _letter in enumerate("kmgt", 1):
    # A bare letter is binary: "80g" of device memory means GiB everywhere.
    _FACTORS |= {
        _letter: 1 << 10 * _power,
        f"{_letter}ib": 1 << 10 * _power,
        f"{_letter}b": 1000**_power,
    }
_FACTORS["b"] = 1

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def size_of(text: str) -> int:
    """Read a size for an option; GB is decimal, GiB and G are binary."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or found[2] not in _FACTORS:
        raise click.BadParameter(f"{text!r} is no size; expected for example 80GiB")
    return round(float(found[1]) * _FACTORS[found[2]])
