"""All entries, and the reports that they are of, as docs/detectors.md has them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.zoo import (
    accumulation,
    calls,
    contention,
    divergence,
    exposure,
    host_memory,
    optimizers,
    ranks_and_input,
    recompute,
    resharding,
    shards,
    tables,
    topology,
    wrapping,
)
from tests.zoo.entry import Entry, Untold

ROOT = Path(__file__).parents[2]
DETECTORS = ROOT / "docs" / "detectors.md"

FAMILIES = (
    exposure,
    wrapping,
    tables,
    resharding,
    recompute,
    accumulation,
    contention,
    topology,
    shards,
    ranks_and_input,
    optimizers,
    host_memory,
    divergence,
    calls,
)

ROWS: tuple[Entry | Untold, ...] = tuple(
    sorted(
        (row for family in FAMILIES for row in family.ENTRIES), key=lambda r: r.number
    )
)
ENTRIES = tuple(row for row in ROWS if isinstance(row, Entry))
UNTOLD = tuple(row for row in ROWS if isinstance(row, Untold))


class PublicReport(NamedTuple):
    """What the catalogue has of a report."""

    number: str
    link: str  # the first, or what stands in its place
    title: str


@cache
def reports() -> dict[str, PublicReport]:
    """The whole catalogue, in its order."""
    text = DETECTORS.read_text(encoding="utf-8")
    part = text.partition("## Public reports")[2].partition("\n## Look-alikes")[0]
    found = {}
    for piece in re.split(r"^\*\*(?=[A-S]-?\d\d\*\*)", part, flags=re.MULTILINE)[1:]:
        number, _, rest = piece.partition("**")
        words = " ".join(rest.split())
        link = re.search(r"https?://[^\s,;)]+", words)
        title = re.search(r'"(.+?)",? ', words)
        found[number] = PublicReport(
            number=number,
            link=link[0].rstrip(".:") if link else words.partition(":")[0].strip("() "),
            title=title[1] if title else "",
        )
    return found
