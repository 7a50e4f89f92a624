"""The pages that are made of the code are those of this code."""

from __future__ import annotations

import re

import pytest

from fsdpdoctor.cli import COMMANDS
from fsdpdoctor.detectors import ALL
from tests.made_pages import DOCS, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    """Made again it is the same: else `python -m tests.made_pages`."""
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name]()


def test_every_command_and_finding_has_its_place() -> None:
    """In the order in which `--help` and `explain` list them."""
    found = {
        name: re.findall("^## (.+)$", (DOCS / name).read_text("utf-8"), re.MULTILINE)
        for name in PAGES
    }

    assert found["commands.md"] == list(COMMANDS)
    assert found["findings.md"] == [
        *(f"{one.code} {one.name}" for one in ALL),
        "Words",
    ]


def test_every_page_is_in_the_menu() -> None:
    """Once; and the menu names no other."""
    menu = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    named = re.findall(r"([\w-]+\.md)$", menu, re.MULTILINE)

    assert sorted(named) == sorted(page.name for page in DOCS.glob("*.md"))
