"""Markdown: for an issue, a pull request or a wiki."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.renderers.report_view import BudgetPart, FindingWords, content_of
from fsdpdoctor.renderers.tables import Table
from fsdpdoctor.report.value import Report

_SPECIAL = re.compile(r"([\\`*_\[\]<>|&$@#~]|:(?=//)|^[+-])")
"""What Markdown, or the sites that show it, would take for more than a character:
emphasis, links, tags, tables, mathematics, mentions, bare addresses, list marks."""

BAR_WIDTH = 40
"""Characters of the longest bar."""


def render(report: Report) -> str:
    """The report as a Markdown document."""
    content = content_of(report)
    lines = [f"**{escape(content.headline)}**", ""]
    lines += _paragraphs((*content.lead, *content.facts))
    lines += _bullets(content.alerts)
    lines += ["## Findings", ""]
    if content.no_findings is not None:
        lines += [escape(content.no_findings), ""]
    for finding in content.findings:
        lines += _finding(finding)
    for units in content.units:
        lines += table_lines(units)
    if content.budget:
        lines += [f"## Step budget: {escape(content.budget_total)}", ""]
        lines += _budget(content.budget)
    for table in (content.no_grad, content.others, content.collectives, content.ranks):
        if table is not None:
            lines += table_lines(table)
    if content.not_judged:
        lines += ["## Not judged", "", *_bullets(content.not_judged)]
    lines += ["## Health", "", *_bullets(content.health)]
    return "\n".join(lines).rstrip() + "\n"


def render_units(report: Report) -> str:
    """Its tables of units alone."""
    tables = content_of(report).units
    return "\n".join(line for table in tables for line in table_lines(table))


def escape(text: str) -> str:
    """The text as Markdown that shows it, whatever it holds."""
    return _SPECIAL.sub(r"\\\1", text)


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield escape(line)
        yield ""


def _bullets(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield f"- {escape(line)}"
    if lines:
        yield ""


def _finding(finding: FindingWords) -> Iterator[str]:
    cost = f": {escape(finding.cost)}" if finding.cost else ""
    yield f"### {finding.severity.upper()} {finding.code} {escape(finding.name)}{cost}"
    yield ""
    yield escape(finding.summary)
    yield ""
    if finding.where is not None:
        yield f"Where: {escape(finding.where)}. Confidence: {finding.confidence}."
        yield ""
    for advice in finding.advice:
        yield f"Try: {escape(advice.text)}"
        yield ""
        if advice.code is not None:
            yield from code_lines(advice.code)


def code_lines(code: str, language: str = "python") -> Iterator[str]:
    """A block whose fence is longer than any run of backticks inside it."""
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}{language}"
    yield code
    yield fence
    yield ""


def table_lines(table: Table) -> Iterator[str]:
    """A table under its title."""
    yield f"## {escape(table.title)}"
    yield ""
    yield f"| {' | '.join(escape(column.title) for column in table.columns)} |"
    yield f"|{'|'.join(':--' if c.left else '--:' for c in table.columns)}|"
    for row in table.rows:
        cells = (
            f"**{escape(cell.text)}**" if cell.alert else escape(cell.text)
            for cell in row
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    if table.note is not None:
        yield escape(table.note)
        yield ""


def _budget(parts: Sequence[BudgetPart]) -> Iterator[str]:
    """A bar per part, as code: nothing in it is Markdown."""
    yield "```"
    for part in parts:
        bar = "#" * round(part.share * BAR_WIDTH)
        figures = f"{ms(part.ns):>10}  {percent(part.share):>7}"
        yield f"{figures}  {part.words:<28}{bar}".rstrip()
    yield "```"
    yield ""
