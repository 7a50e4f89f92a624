"""The terminal: readable at 80 columns, without colours, and through a pipe."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.renderers.formatting import shorten
from fsdpdoctor.renderers.palette import EXPOSED, PARTS, letter_on
from fsdpdoctor.renderers.report_view import (
    BudgetPart,
    Content,
    FindingWords,
    content_of,
)
from fsdpdoctor.renderers.tables import Cell, Table
from fsdpdoctor.report.value import Report

PLAIN_WIDTH = 100
"""Columns of `render`, which has no terminal to ask."""

MOST_ROWS = {"unit": 24, "size": 8, "line": 8, "rank": 16, "part": 64}
"""Rows shown of each table; the other formats have all. A terminal's screen."""

MOST_ALERTS = 12
"""A job of a thousand ranks may have a thousand damaged files."""

NAME_WIDTH = 14
"""A unit's name gets at least this much, and columns are left out before less."""

EXPOSED_STYLE = f"bold {EXPOSED}"
"""Nothing else is drawn in it."""

SEVERITY_STYLES = {
    "critical": "bold white on #9a2d00",
    "warning": "bold black on #e0b000",
    "info": "bold black on #8fb8d8",
}


def render(report: Report) -> str:
    """The report as plain text."""
    output = io.StringIO()
    console = Console(
        file=output, width=PLAIN_WIDTH, color_system=None, force_terminal=False
    )
    show(report, console)
    return output.getvalue()


def show(report: Report, console: Console) -> None:
    """Print the report."""
    content = content_of(report)
    _say(console, Text(content.headline, style="bold"))
    for line in content.lead:
        _say(console, Text(line))
    for fact in content.facts:
        _say(console, Text(fact, style="dim"))
    for alert in content.alerts[:MOST_ALERTS]:
        _say(console, Text(f"! {alert}", style="bold yellow"))
    if (hidden := len(content.alerts) - MOST_ALERTS) > 0:
        _say(console, Text(f"! and {hidden} more: --format html has them all"))
    show_findings(console, content)
    _code_elsewhere(console, content)
    for units in content.units:
        _table(console, units)
    if content.budget:
        _heading(console, f"Step budget: {content.budget_total}")
        _budget(console, content.budget)
    for table in (content.no_grad, content.others, content.collectives, content.ranks):
        if table is not None:
            _table(console, table)
    for title, lines in (
        ("Not judged", content.not_judged),
        ("Health", content.health),
    ):
        if lines:
            _heading(console, title)
            for line in lines:
                _indented(console, Text(line))


def show_tables(
    tables: Sequence[Table], lines: Sequence[str], console: Console
) -> None:
    """Print some tables, and what is said below them."""
    for table in tables:
        _table(console, table)
    for line in lines:
        _indented(console, Text(line))


def _say(console: Console, text: Text) -> None:
    """One line of the report. In a pipe it stays one line, for `head` and `grep`."""
    console.print(text, soft_wrap=not console.is_terminal)


def _heading(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))


def _indented(console: Console, text: Text) -> None:
    """A paragraph two characters in, without the spaces that padding would add."""
    for line in text.wrap(console, console.width - 2):
        line.rstrip()
        console.print(Text("  ").append_text(line), soft_wrap=True)


def show_findings(console: Console, content: Content) -> None:
    """Each finding with what to try, in the order of the report."""
    if content.no_findings is not None:
        console.print()
        console.print(Text(content.no_findings))
    for finding in content.findings:
        console.print()
        _finding(console, finding)


def _code_elsewhere(console: Console, content: Content) -> None:
    if any(_is_brief(f) and any(a.code for a in f.advice) for f in content.findings):
        console.print()
        more = "Code for what is only information: --format markdown or html."
        console.print(Text(more, style="dim"))


def _is_brief(finding: FindingWords) -> bool:
    """Information leaves its code to the other formats: it would bury the tables."""
    return finding.severity == "info"


def _finding(console: Console, finding: FindingWords) -> None:
    label = f" {finding.severity.upper()} "
    title = Text.assemble(
        (label, SEVERITY_STYLES[finding.severity]),
        " ",
        (f"{finding.code} {finding.name}", "bold"),
    )
    if finding.cost is not None:
        title.append(f"  {finding.cost}", style=EXPOSED_STYLE)
    if finding.confidence != "high":
        title.append(f"  ({finding.confidence} confidence)", style="dim")
    console.print(title)
    _indented(console, Text(finding.summary))
    if finding.where is not None:
        _indented(console, Text(finding.where, style="dim"))
    for advice in finding.advice:
        _indented(console, Text.assemble(("try: ", "bold green"), advice.text))
        if advice.code is not None and not _is_brief(finding):
            _code(console, advice.code)


def _code(console: Console, code: str) -> None:
    """Never wrapped or cut: it is there to be pasted."""
    for line in code.split("\n"):
        console.print(Text(f"      {line}".rstrip(), style="cyan"), soft_wrap=True)


def _table(console: Console, table: Table) -> None:
    rows = table.heaviest(MOST_ROWS[table.noun])
    columns = _fitting(table, rows, console.width)
    widths = _widths(table, rows)
    if table.columns[0].left:
        others = sum(widths[at] + 1 for at in columns[1:])
        widths[0] = min(widths[0], max(NAME_WIDTH, console.width - 3 - others))
    _heading(console, table.title)
    titles = [Text(column.title, style="dim") for column in table.columns]
    _row(console, table, titles, columns, widths)
    for row in rows:
        cells = [_cell(table, cell, at, widths[0]) for at, cell in enumerate(row)]
        _row(console, table, cells, columns, widths)
    if hidden := len(table.rows) - len(rows):
        more = f"and {hidden} {table.noun}s that cost less; --format html has them all"
        _indented(console, Text(more, style="dim"))
    if table.note is not None:
        _indented(console, Text(table.note, style="dim"))


def _row(
    console: Console,
    table: Table,
    cells: Sequence[Text],
    columns: Sequence[int],
    widths: Sequence[int],
) -> None:
    line = Text(" ")
    for at in columns:
        cell = cells[at]
        cell.align("left" if table.columns[at].left else "right", widths[at])
        line.append(" ").append_text(cell)
    line.rstrip()
    console.print(line, soft_wrap=True)


def _cell(table: Table, cell: Cell, column: int, first: int) -> Text:
    text = cell.text
    if column == 0 and table.columns[0].left:
        text = shorten(text, first)
    style = ""
    if cell.alert:
        style = "bold yellow"
    elif table.columns[column].exposed and cell.share:
        style = EXPOSED_STYLE
    return Text(text, style=style)


def _widths(table: Table, rows: Sequence[Sequence[Cell]]) -> list[int]:
    return [
        max(cell_len(text) for text in (column.title, *(row[at].text for row in rows)))
        for at, column in enumerate(table.columns)
    ]


def _fitting(
    table: Table, rows: Sequence[Sequence[Cell]], width: int
) -> tuple[int, ...]:
    """The columns that there is room for, least wanted left out first."""
    widths = _widths(table, rows)
    if table.columns[0].left:
        widths[0] = min(widths[0], NAME_WIDTH)
    kept = list(range(len(widths)))
    # Two characters before the table, one after each column.
    while len(kept) > 1 and 2 + sum(widths[at] + 1 for at in kept) > width:
        kept.remove(min(kept[1:], key=lambda at: (table.columns[at].keep, -at)))
    return tuple(kept)


def _budget(console: Console, parts: Sequence[BudgetPart]) -> None:
    """One bar with a letter per part, then what the letters mean."""
    width = console.width - 4
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    styles = _part_styles(parts)
    bar, spent, reached = Text("  "), 0, 0.0
    for part, letter, style in zip(parts, letters, styles, strict=False):
        reached += part.share
        columns = round(reached * width) - spent
        spent += columns
        bar.append(letter * columns, style=style)
    console.print(bar)
    for part, letter, style in zip(parts, letters, styles, strict=False):
        line = Text.assemble(
            "  ", (letter, style), f" {ms(part.ns):>10}  {percent(part.share):>7}  "
        )
        line.append(part.words, style=EXPOSED_STYLE if part.exposed else "")
        console.print(line)


def _part_styles(parts: Sequence[BudgetPart]) -> list[str]:
    """By what a part is, as in the timeline and in every other run."""
    return [
        f"bold white on {EXPOSED}"
        if part.exposed
        else f"{letter_on(PARTS[part.part])} on {PARTS[part.part]}"
        for part in parts
    ]
