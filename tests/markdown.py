"""What tests need of Markdown: headings, tables, links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Section(NamedTuple):
    """What stands under one heading, up to the next of any level."""

    heading: str
    lines: tuple[str, ...]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells of its first table, without the head; backticks left out."""
        cells: list[tuple[str, ...]] = []
        for line in self.lines:
            if line.startswith("|"):
                parts = line.strip().strip("|").split("|")
                cells.append(tuple(part.strip().strip("`") for part in parts))
            elif cells:
                break
        return cells[2:]


def sections(path: Path) -> dict[str, Section]:
    """By heading, in their order."""
    found: dict[str, Section] = {}
    heading, lines = "", list[str]()
    for line in [*path.read_text(encoding="utf-8").splitlines(), "# "]:
        if line.startswith("#"):
            found[heading] = Section(heading, tuple(lines))
            heading, lines = line.lstrip("#").strip(), []
        else:
            lines.append(line)
    return found


def anchors(path: Path) -> set[str]:
    """What a link may name after `#`, as GitHub makes it of headings."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in sections(path))
    return {heading.strip().replace(" ", "-") for heading in plain}


def dead_links(path: Path) -> list[str]:
    """The relative links that lead to no file, or to no heading of one."""
    dead = []
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    return dead
