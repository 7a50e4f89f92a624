"""What the pages say: their words in order, each with the heading, the column and the
row that it stands under. No browser is needed to read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from dash.development.base_component import Component

from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.run_registry import Entry, Loading, OpenRun, open_entry
from fsdpdoctor_dashboard.pages.components import Context

PAGES = ("overview", "timeline", "units", "collectives", "ranks", "memory")
BLOCKS = ("H1", "H2", "H3", "P", "Li", "Summary", "Th", "Td", "Pre", "Button", "Label")
"""Components whose words are read as one."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """Words of a page. A cell also has its table, its column and its row's name."""

    page: str
    heading: str
    words: str
    table: str = ""
    column: str = ""
    row: str = ""


def opened(path: Path) -> OpenRun:
    """A run as the dashboard opens it."""
    return open_entry(Entry(id=path.name, path=path), open_run, Loading())


def pages_of(run: OpenRun) -> list[Said]:
    """All words of all pages about one run."""
    context = Context(base="/", theme="light", runs=(run,))
    found: list[Said] = []
    for name in PAGES:
        module = import_module(f"fsdpdoctor_dashboard.pages.{name}")
        found += said(name, module.page(context))
    return found


def said(page: str, *parts: Component) -> list[Said]:
    """The words of a page's parts."""
    heading = ""
    found = []
    for part in parts:
        for one in _walk(page, part):
            # A finding beside the timeline is headed by what opens it.
            opens = page == "timeline" and one.column == "Summary"
            if one.column in ("H1", "H2", "H3") or opens:
                heading = one.words
            column = "" if one.column in BLOCKS else one.column
            found.append(
                Said(
                    page=page,
                    heading=heading,
                    words=one.words,
                    table=one.table,
                    column=column,
                    row=one.row,
                )
            )
    return found


def _walk(page: str, part: object) -> Iterator[Said]:
    """Blocks in order; the kind of what is no cell stands in `column`."""
    if isinstance(part, list | tuple):
        for one in part:
            yield from _walk(page, one)
        return
    if not isinstance(part, Component):
        if part is not None and str(part).strip():
            yield Said(page=page, heading="", words=str(part))
        return
    kind = type(part).__name__
    if tip := getattr(part, "data-tip", ""):
        yield Said(page=page, heading="", words=str(tip))
    if kind == "Table":
        yield from _cells(page, part)
    elif kind in BLOCKS:
        yield Said(page=page, heading="", words=words_of(part), column=kind)
    else:
        yield from _walk(page, getattr(part, "children", None))


def _cells(page: str, table: Component) -> Iterator[Said]:
    head, body = table.children
    columns = [words_of(cell) for cell in head.children.children]
    for row in body.children:
        texts = [words_of(cell) for cell in row.children]
        for column, text in zip(columns, texts, strict=True):
            yield Said(
                page=page,
                heading="",
                words=text,
                table=str(getattr(table, "id", "")),
                column=column or "name",
                row=texts[0],
            )


def words_of(part: object) -> str:
    """All words inside."""
    if part is None:
        return ""
    if isinstance(part, list | tuple):
        return "".join(map(words_of, part))
    if isinstance(part, Component):
        return words_of(getattr(part, "children", None))
    return str(part)
