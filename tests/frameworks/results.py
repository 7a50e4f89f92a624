"""The page of results: a section for each group of scripts, written by its test."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "benchmarks" / "frameworks-results.md"


def write(title: str, text: str) -> None:
    """Write one section anew; the others stay."""
    page = RESULTS.read_text("utf-8") if RESULTS.exists() else ""
    sections = re.split(r"^(?=# )", page, flags=re.MULTILINE)
    kept = [one.strip() for one in sections if not one.startswith(f"# {title}\n")]
    made = [*filter(None, kept), f"# {title}\n\n{text.strip()}"]
    RESULTS.write_text("\n\n".join(sorted(made, reverse=True)) + "\n", "utf-8")


def kept(names: Sequence[str], rows: Mapping[str, str]) -> list[str]:
    """Rows by name: those of this run, and of earlier ones what it did not have."""
    page = RESULTS.read_text("utf-8") if RESULTS.exists() else ""
    before = {
        line.split("|")[1].strip(): line
        for line in page.splitlines()
        if line.startswith("| ")
    }
    found = (rows.get(name, before.get(name)) for name in names)
    return [row for row in found if row is not None]
