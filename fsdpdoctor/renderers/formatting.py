"""Names, lists and counts as every renderer writes them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import groupby

from fsdpdoctor.quantities import ms
from fsdpdoctor.storage.json_text import HIDDEN_CATEGORIES

LONGEST_NAME = 200
"""Characters of a unit's name that are shown. Real FQNs stay under 120; a hostile
one may have 10,000."""

_NUMBERED = re.compile(r"(.*?)(\d+)((?:\.\D[^,]*)?)")
"""A unit that is one of a row of siblings: what stands before and after its number."""


def visible(text: str) -> str:
    """The text with every character that is not seen written as its escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if unicodedata.category(character) not in HIDDEN_CATEGORIES
        else character.encode("unicode_escape", "backslashreplace").decode("ascii")
        for character in text
    )


def visible_lines(text: str) -> str:
    """The same, line by line: code keeps its line ends."""
    return "\n".join(visible(line) for line in text.split("\n"))


def mean_words(step_ns: int) -> str:
    """What stands over the parts of the mean step."""
    return f"{ms(step_ns)}, mean step, and shares of it"


def shorten(name: str, width: int) -> str:
    """A name in at most `width` characters. Its end says more than its start."""
    if len(name) <= width:
        return name
    return "..." + name[len(name) - width + 3 :] if width > 3 else name[:width]


def unit_name(name: str) -> str:
    """A unit's name, safe to show."""
    return shorten(visible(name), LONGEST_NAME)


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers as `0-7, 9`."""
    parts: list[str] = []
    ordered = sorted(set(numbers))
    for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        first, last = members[0], members[-1]
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ", ".join(parts)


def units(names: Sequence[str], limit: int = 6) -> str:
    """Units as `layers.[0-7], "norm, output"`, siblings together."""
    siblings: dict[tuple[str, str], list[int]] = {}
    for name in dict.fromkeys(names):
        match = _NUMBERED.fullmatch(name)
        if match:
            key = (match[1], match[3])
            siblings.setdefault(key, []).append(int(match[2]))
        else:
            siblings[name, ""] = []
    parts = [
        _siblings(head, numbers, tail) for (head, tail), numbers in siblings.items()
    ]
    shown = [unit_name(part) for part in parts[:limit]]
    if len(parts) > limit:
        shown.append(f"and {len(parts) - limit} more")
    return ", ".join(shown)


def _siblings(head: str, numbers: Sequence[int], tail: str) -> str:
    if not numbers:
        return f'"{head}"' if ", " in head else head
    if len(numbers) == 1:
        return f"{head}{numbers[0]}{tail}"
    return f"{head}[{ranges(numbers)}]{tail}"


def counted(value: float) -> str:
    """A count per micro-batch: `1`, `0.25`."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def whole(number: int) -> str:
    """A large count: `12.3 M`."""
    for size, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return str(number)
