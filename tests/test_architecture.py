"""ARCHITECTURE.md says what the code has: its folders, and its Notes."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PACKAGES = (ROOT / "fsdpdoctor", ROOT / "dashboard" / "fsdpdoctor_dashboard")
DEFINED = re.compile(r"^(?:[#/* ]*|\"\"\".*)\[Note: ([^]]+)\]", re.MULTILINE)
NAMED = re.compile(r"\[Note: ([^]]+)\]")


def sources() -> dict[str, str]:
    """The code by path, as ARCHITECTURE.md shortens it."""
    return {
        str(path.relative_to(ROOT))
        .removeprefix("fsdpdoctor/")
        .replace("dashboard/fsdpdoctor_dashboard/", "dashboard/.../"): path.read_text(
            encoding="utf-8"
        )
        for package in PACKAGES
        for path in package.rglob("*")
        if path.suffix in (".py", ".js")
    }


def notes(text: str) -> list[str]:
    """The Notes that a file tells, rather than cites."""
    return DEFINED.findall(text)


def test_every_note_is_told_once_and_listed() -> None:
    """The list in ARCHITECTURE.md is the notes of the code, each with its file."""
    told = {(name, path) for path, text in sources().items() for name in notes(text)}
    listed = set(re.findall(r"^- ([^:\n]+): `([^`]+)`$", TEXT, re.MULTILINE))

    assert listed == told
    assert len({name for name, _ in told}) == len(told)


def test_every_note_that_is_cited_is_told() -> None:
    """A citation leads somewhere."""
    told = {name for text in sources().values() for name in notes(text)}
    cited = {
        " ".join(name.split())
        for text in sources().values()
        for name in NAMED.findall(text.replace("\n// ", "\n").replace("\n# ", "\n"))
    }

    assert cited - told == set()


def test_every_folder_has_its_row() -> None:
    """A folder that the table of rooms does not name is a room nobody finds."""
    rows = set(re.findall(r"^\| `([^`]+)/` \|", TEXT, re.MULTILINE))
    inside = re.findall(r"`(\w+)/`", TEXT)
    ours = PACKAGES[0]
    folders = {
        str(path.parent.relative_to(ours))
        for path in ours.rglob("__init__.py")
        if path.parent != ours
    }
    pages = {path.parent.name for path in PACKAGES[1].glob("*/__init__.py")}

    assert folders - rows == set()
    assert pages - set(inside) == set()
