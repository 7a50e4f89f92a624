"""The documentation against the code: what is cited exists, and tables agree."""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from fsdpdoctor.detectors import ALL
from fsdpdoctor.quantities import MIB
from tests.markdown import dead_links, sections
from tests.test_robustness import ROWS, A

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
DETECTORS, ROBUSTNESS = DOCS / "detectors.md", DOCS / "robustness.md"
PAGES = sorted(
    [
        *DOCS.glob("*.md"),
        ROOT / "README.md",
        ROOT / ".github" / "CONTRIBUTING.md",
        ROOT / ".github" / "SECURITY.md",
        ROOT / "traces" / "README.md",
    ]
)
SOURCES = sorted(
    path
    for folder in ("fsdpdoctor", "dashboard", "tests")
    for suffix in ("*.py", "*.js", "*.c")
    for path in (ROOT / folder).rglob(suffix)
)
CODES = {detector.code: detector.name for detector in ALL}

# "NVIDIA H20" and the like are devices.
ID = re.compile(r"(?<![\w.#/-])(?<!NVIDIA )([A-S]-?\d\d)(?![\w-])")
CODE = re.compile(r"\bFD\d{3}\b")
PAGE = re.compile(r"[\w./-]+\.md\b")
NOTE = re.compile(r"\[Note: ([^\]]+)\]")
TEST_OF_ROW = re.compile(r"(?<=_)r\d\d(?=_)")


@cache
def ids() -> frozenset[str]:
    """Rules and public reports of `docs/detectors.md`."""
    text = DETECTORS.read_text(encoding="utf-8")
    return frozenset(
        [
            *re.findall(r"^### (D\d\d) ", text, re.MULTILINE),
            *re.findall(r"^\*\*([A-S]-?\d\d)\*\*", text, re.MULTILINE),
        ]
    )


@cache
def levels() -> dict[str, str]:
    """The level of each R-number of `docs/robustness.md`."""
    return {
        row[0]: row[-1]
        for section in sections(ROBUSTNESS).values()
        for row in section.rows
        if re.fullmatch(r"R\d\d", row[0])
    }


@cache
def notes() -> frozenset[str]:
    """The notes that begin a line of their own somewhere in the code."""
    begins = re.compile(r"^\W*\[Note: ([^\]]+)\]", re.MULTILINE)
    return frozenset(
        name
        for path in SOURCES
        for name in begins.findall(path.read_text(encoding="utf-8"))
    )


def unresolved(text: str, folder: Path) -> list[str]:
    """What a text of a file in `folder` cites and nobody has.

    An R-number is a row of `docs/robustness.md`, unless the other page is named before.
    """
    missing = [code for code in CODE.findall(text) if code not in CODES]
    for found in ID.finditer(text):
        name, before = found[1], text[: found.start()]
        rows = levels() if name[0] == "R" and "-" not in name else ids()
        if before.endswith("detectors.md` "):
            rows = ids()
        if name not in rows:
            missing.append(name)
    for page in PAGE.findall(text):
        if not (ROOT / page).exists() and not (folder / page).exists():
            missing.append(page)
    return missing + [name for name in NOTE.findall(text) if name not in notes()]


def prose(path: Path) -> Iterator[str]:
    """Comments and docstrings of a source file; names of tests that answer rows."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from re.findall(r"^\s*(?://|/\*|\*).*$", text, re.MULTILINE)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield " ".join(TEST_OF_ROW.findall(node.name)).upper()


def constants() -> dict[tuple[str, str], float]:
    """The numbers that detectors name in their modules, by code and name."""
    found: dict[tuple[str, str], float] = {}
    for detector in ALL:
        module = sys.modules[detector.find.__module__]
        for node in ast.parse(inspect.getsource(module)).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            names = [
                part.id
                for target in targets
                for part in ast.walk(target)
                if isinstance(part, ast.Name)
            ]
            for name in names:
                value = getattr(module, name)
                if name.isupper() and isinstance(value, int | float):
                    found[detector.code, name] = value
    return found


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`docs/detectors.md` D02, D99 and K01", ["D99"]),
        ("as D-04 and D-12 show", ["D-12"]),
        ("R01 and R46; `docs/detectors.md` R10", ["R46"]),
        ("`docs/detectors.md` R11, for R11", ["R11"]),
        ("as FD101 and FD199", ["FD199"]),
        ("see docs/detectors.md and detectors.md", ["detectors.md"]),
        ("see [Note: A run on disk] and [Note: Nowhere]", ["Nowhere"]),
        ("on an H100 and an NVIDIA H20, in 1.D02, ID99 and #F00", []),
    ],
)
def test_an_unknown_citation_is_seen(text: str, missing: list[str]) -> None:
    """Of each sort, beside a known one."""
    assert unresolved(text, ROOT) == missing


def test_comments_are_seen_and_strings_are_not(tmp_path: Path) -> None:
    """What a test plants as a string cites nothing."""
    path = tmp_path / "code.py"
    path.write_text('"""A."""\nx = "B"  # C\n\n\ndef test_r01_r02_d():\n    """E."""\n')

    assert sorted(prose(path)) == ["# C", "A.", "E.", "R01 R02"]


def test_what_the_code_cites_exists() -> None:
    """Rules, reports, rows, codes, pages and notes."""
    missing = {
        str(path.relative_to(ROOT)): [
            name for text in prose(path) for name in unresolved(text, path.parent)
        ]
        for path in SOURCES
    }

    assert {path: names for path, names in missing.items() if names} == {}


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_what_a_page_cites_exists(path: Path) -> None:
    """Its ids and codes, files and tests that it names, and its links."""
    text = path.read_text(encoding="utf-8")
    files = re.findall(r"`((?:tests|traces|docs|fsdpdoctor)/[\w/.-]+)`", text)

    assert [name for name in files if not (ROOT / name).exists()] == []
    assert dead_links(path) == []
    if path.parent == DOCS:
        plain = re.sub(r"https?://\S+|\]\([^)]*\)", "", text)
        assert unresolved(plain, DOCS) == []


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    """No such file, no such heading; what is there, here or in the network, is not."""
    page = tmp_path / "page.md"
    page.write_text(
        "# A page's `heading`\n[a](#a-pages-heading) [b](page.md#nowhere) [c](no.md) "
        "[d](https://example.org/x#y) [e](#nowhere)\n"
    )

    assert dead_links(page) == ["page.md#nowhere", "no.md", "#nowhere"]


def test_every_code_has_its_row() -> None:
    """With its name, and the rules whose headings name it."""
    rows = sections(DETECTORS)["Codes"].rows
    rules: dict[str, list[str]] = {}
    for heading in sections(DETECTORS):
        for code in CODE.findall(heading):
            rules.setdefault(code, []).append(heading[:3])

    assert {code: name for code, name, *_ in rows} == CODES
    assert {code: rule.split(", ") for code, _, rule, _ in rows} == rules


def test_every_threshold_has_its_row() -> None:
    """With the value that the detector uses, and a word on where it comes from."""
    rows = sections(DETECTORS)["Thresholds"].rows
    values = {
        (code, name): float(value.removesuffix(" MiB"))
        * (MIB if value.endswith(" MiB") else 1)
        for code, name, value, _ in rows
    }

    assert values == constants()
    assert [row for row in rows if not row[3]] == []


def test_every_row_has_its_answer() -> None:
    """The rows of `docs/robustness.md` are those that tests answer, as are levels."""
    assert levels().keys() == ROWS.keys()
    assert {row for row, level in levels().items() if level == "A"} == A


def test_ids_are_given_once() -> None:
    """No rule or report has another's id."""
    text = DETECTORS.read_text(encoding="utf-8")
    given = re.findall(r"^(?:### (D\d\d) |\*\*([A-S]-?\d\d)\*\*)", text, re.MULTILINE)
    names = ["".join(pair) for pair in given]

    assert len(names) == len(set(names)) == len(ids())
    assert {f"D{number:02}" for number in range(1, 30)} < ids()


def test_docs_are_plain_ascii() -> None:
    """As comments are: they are read in terminals, too."""
    assert [
        page.name for page in DOCS.glob("*.md") if not page.read_text().isascii()
    ] == []
