"""Memory snapshots on the terminal, as Markdown, as a page and as JSON."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape

from rich.console import Console
from rich.text import Text

from fsdpdoctor.memory_snapshot.compare_ranks import SnapshotComparison
from fsdpdoctor.memory_snapshot.snapshot_report import (
    SNAPSHOT_SCHEMA_VERSION,
    SnapshotReport,
)
from fsdpdoctor.renderers import html, markdown
from fsdpdoctor.renderers.html_style import STYLE
from fsdpdoctor.renderers.snapshots.rank_words import comparison_words
from fsdpdoctor.renderers.snapshots.snapshot_words import SnapshotWords, snapshot_words
from fsdpdoctor.renderers.text import show_tables
from fsdpdoctor.storage.json_text import json_text

MOST_ROWS = 12
"""Of a table on the terminal."""

MOST_STACKS = 3
MOST_FRAMES = 8
"""Shown on the terminal: the largest holders, and so much of their stacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDocument:
    """What the JSON holds."""

    schema_version: int = SNAPSHOT_SCHEMA_VERSION
    snapshots: tuple[SnapshotReport, ...]
    comparison: SnapshotComparison | None


def _words(
    document: SnapshotDocument, most_rows: int | None = None
) -> Iterator[SnapshotWords]:
    if document.comparison is not None:
        yield comparison_words(document.comparison)
    for report in document.snapshots:
        yield from snapshot_words(report, most_rows)


def show_snapshots(document: SnapshotDocument, console: Console) -> None:
    """Print each file: what it held most of, tables, and the largest holders."""
    wrap = not console.is_terminal
    for number, words in enumerate(_words(document, MOST_ROWS)):
        if number:
            console.print()
        console.print(Text(words.headline, style="bold"), soft_wrap=wrap)
        for fact in words.facts:
            alert = fact.startswith("OUT OF MEMORY")
            console.print(
                Text(fact, style="bold yellow" if alert else ""), soft_wrap=wrap
            )
        for note in words.notes:
            console.print(Text(f"note: {note}", style="yellow"), soft_wrap=wrap)
        show_tables(words.tables, (), console)
        if words.stacks:
            console.print()
            console.print(Text("Largest holders", style="bold"))
        for title, frames in words.stacks[:MOST_STACKS]:
            console.print(Text(f"  {title}"), soft_wrap=wrap)
            for frame in frames[:MOST_FRAMES]:
                console.print(Text(f"      {frame}", style="dim"), soft_wrap=True)


def _as_text(document: SnapshotDocument) -> str:
    file = io.StringIO()
    show_snapshots(document, Console(file=file, width=100, highlight=False))
    return file.getvalue()


def _as_json(document: SnapshotDocument) -> str:
    return json_text(document)


def _as_markdown(document: SnapshotDocument) -> str:
    lines: list[str] = []
    for words in _words(document):
        lines += [f"# {markdown.escape(words.headline)}", ""]
        for said in (*words.facts, *(f"note: {note}" for note in words.notes)):
            lines += [f"- {markdown.escape(said)}"]
        lines.append("")
        for table in words.tables:
            lines += markdown.table_lines(table)
        if words.stacks:
            lines += ["## Largest holders", ""]
        for title, frames in words.stacks:
            lines += [
                markdown.escape(title),
                "",
                *markdown.code_lines("\n".join(frames), "text"),
            ]
    return "\n".join(lines).rstrip() + "\n"


def _as_html(document: SnapshotDocument) -> str:
    pages = list(_words(document))
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            html.policy_tag(),
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>fsdpdoctor: {escape(pages[0].headline)}</title>",
            f"<style>{STYLE}</style></head><body>",
            *(line for words in pages for line in _section(words)),
            f"<footer>fsdpdoctor, snapshot format {document.schema_version}</footer>",
            "</body></html>\n",
        )
    )


def _section(words: SnapshotWords) -> Iterator[str]:
    yield f"<h1>{escape(words.headline)}</h1>"
    for fact in words.facts:
        yield f'<p class="facts">{escape(fact)}</p>'
    if words.notes:
        yield "<ul>"
        yield from (f"<li>{escape(note)}</li>" for note in words.notes)
        yield "</ul>"
    for table in words.tables:
        yield from html.table_lines(table)
    if words.stacks:
        yield "<h2>Largest holders</h2>"
    for title, frames in words.stacks:
        yield f"<details><summary>{escape(title)}</summary><pre>"
        yield escape("\n".join(frames))
        yield "</pre></details>"


SNAPSHOT_RENDERERS: Mapping[str, Callable[[SnapshotDocument], str]] = {
    "text": _as_text,
    "json": _as_json,
    "markdown": _as_markdown,
    "html": _as_html,
}
"""Format name to its renderer. SARIF is of findings, which a snapshot has none of."""
