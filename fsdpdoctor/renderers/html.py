"""One self-contained HTML page: nothing from the network, and no script of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.renderers.palette import EXPOSED, PARTS
from fsdpdoctor.renderers.report_view import (
    BudgetPart,
    Content,
    FindingWords,
    content_of,
)
from fsdpdoctor.renderers.tables import Cell, Column, Table
from fsdpdoctor.report.value import Report

# Everything is refused but the page's own style sheet and the widths of its bars.
CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

STYLE = """
:root { color-scheme: light dark;
  --ground: #ffffff; --ink: #1b1f24; --soft: #59636e; --line: #d8dee4;
  --card: #f6f8fa; --exposed: #d55e00; --bar: #c9ddf2; --exposed-bar: #f5c9a8;
  --critical: #9a2d00; --warning: #8a6100; --info: #2f5f8f; --code: #eef1f4; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #12161b; --ink: #e3e8ee; --soft: #9aa5b1; --line: #323a44;
  --card: #1a2028; --exposed: #ff8a3d; --bar: #274764; --exposed-bar: #6e3a17;
  --critical: #ff8f66; --warning: #f0c040; --info: #8fb8d8; --code: #0c0f13; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 24px 20px 60px;
  background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 22px; line-height: 1.35; margin: 0 0 8px; }
h2 { font-size: 17px; margin: 34px 0 10px; }
h3 { font-size: 15px; margin: 0 0 6px; display: flex; flex-wrap: wrap;
  gap: 4px 10px; align-items: baseline; }
p { margin: 4px 0; }
.facts, .where { color: var(--soft); }
.alert { border-left: 4px solid var(--warning); background: var(--card);
  padding: 6px 12px; margin: 8px 0; }
.finding { background: var(--card); border: 1px solid var(--line);
  border-left: 5px solid var(--info); border-radius: 6px; padding: 12px 16px;
  margin: 12px 0; }
.finding.critical { border-left-color: var(--critical); }
.finding.warning { border-left-color: var(--warning); }
.severity { text-transform: uppercase; font-size: 12px; letter-spacing: .06em;
  font-weight: 700; color: var(--info); }
.critical .severity { color: var(--critical); }
.warning .severity { color: var(--warning); }
.cost { color: var(--exposed); font-weight: 700; }
.advice { margin-top: 10px; }
.advice b { color: var(--ink); }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 4px;
  padding: 8px 12px; margin: 6px 0; overflow-x: auto;
  font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, monospace; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; color: var(--soft); font-weight: 600; font-size: 13px;
  border-bottom: 1px solid var(--line); padding: 4px 8px; white-space: nowrap; }
td { text-align: right; padding: 3px 8px; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th.left, td.left { text-align: left; }
td.left { max-width: 360px; overflow: hidden; text-overflow: ellipsis; }
td { border-right: 6px solid transparent; background-clip: padding-box; }
td.bar { background-image: linear-gradient(to left, var(--bar) var(--share),
  transparent var(--share)); }
td.exposed.bar { background-image: linear-gradient(to left, var(--exposed-bar)
  var(--share), transparent var(--share)); }
td.mismatch { color: var(--exposed); font-weight: 700; }
.budget { display: flex; height: 30px; border-radius: 4px; overflow: hidden; }
.budget div { min-width: 1px; }
.budget div + div { border-left: 1px solid var(--ground); }
.legend { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr));
  gap: 2px 20px; margin: 10px 0 0; padding: 0; list-style: none; }
.legend li { display: flex; align-items: center; gap: 8px; }
.legend .name { flex: 1; }
.legend .hidden { color: var(--exposed); font-weight: 700; }
.swatch { width: 13px; height: 13px; border-radius: 2px; flex: none; }
.hatched { background-image: repeating-linear-gradient(45deg, #ffffff66 0 3px,
  transparent 3px 8px); }
ul { margin: 6px 0; padding-left: 20px; }
li { overflow-wrap: anywhere; }
p, h1, h3 { overflow-wrap: anywhere; }
footer { margin-top: 40px; color: var(--soft); font-size: 13px; }
@page { size: A4; margin: 12mm; }
@media print {
  :root { color-scheme: light; --ground: #ffffff; --ink: #1b1f24; --soft: #59636e;
    --line: #d8dee4; --card: #f6f8fa; --exposed: #b84f00; --code: #eef1f4;
    --critical: #9a2d00; --warning: #8a6100; --info: #2f5f8f; }
  body { max-width: none; padding: 0; font-size: 11px; print-color-adjust: exact;
    -webkit-print-color-adjust: exact; }
  h2, h3, thead { break-after: avoid; }
  .budget, .legend li, tr, .alert { break-inside: avoid; }
  pre { white-space: pre-wrap; font-size: 9px; }
  .scroll { overflow: visible; }
  table, th { font-size: 9px; }
  th, td { white-space: normal; padding: 2px 4px; border-right: 0; }
  td.bar, td.exposed.bar { background-image: none; }
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """Something below the report, such as a timeline, that brings its own script."""

    title: str
    note: str  # what it shows of the run
    style: str
    body: str
    policy: str  # that allows it and nothing else


def render(report: Report, addition: Addition | None = None) -> str:
    """The report as a page that opens from disk."""
    policy = addition.policy if addition else CONTENT_SECURITY_POLICY
    style = STYLE + addition.style if addition else STYLE
    content = content_of(report)
    title = report.run.model_class or "run"
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            _meta("Content-Security-Policy", policy),
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>fsdpdoctor: {escape(title)}</title>",
            f"<style>{style}</style></head><body>",
            *_body(content),
            *(_added(addition) if addition else ()),
            f"<footer>fsdpdoctor, report format {report.schema_version}</footer>",
            "</body></html>\n",
        )
    )


def _added(addition: Addition) -> Iterator[str]:
    yield f"<h2>{escape(addition.title)}</h2>"
    yield f'<p class="facts">{escape(addition.note)}</p>'
    yield addition.body


def _meta(name: str, value: str) -> str:
    return f'<meta http-equiv="{name}" content="{escape(value)}">'


def _body(content: Content) -> Iterator[str]:
    yield f"<h1>{escape(content.headline)}</h1>"
    for line in content.lead:
        yield f'<p class="lead">{escape(line)}</p>'
    for fact in content.facts:
        yield f'<p class="facts">{escape(fact)}</p>'
    for alert in content.alerts:
        yield f'<p class="alert">{escape(alert)}</p>'
    if content.budget:
        yield f"<h2>Step budget: {escape(content.budget_total)}</h2>"
        yield from _budget(content.budget)
    yield "<h2>Findings</h2>"
    if content.no_findings is not None:
        yield f"<p>{escape(content.no_findings)}</p>"
    for finding in content.findings:
        yield from _finding(finding)
    for table in (
        *content.units,
        content.no_grad,
        content.others,
        content.collectives,
        content.ranks,
    ):
        if table is not None:
            yield from _table(table)
    yield from _list("Not judged", content.not_judged)
    yield from _list("Health", content.health)


def _finding(finding: FindingWords) -> Iterator[str]:
    yield f'<section class="finding {escape(finding.severity)}"><h3>'
    yield f'<span class="severity">{escape(finding.severity)}</span>'
    yield f"<span>{escape(finding.code)} {escape(finding.name)}</span>"
    if finding.cost is not None:
        yield f'<span class="cost">{escape(finding.cost)}</span>'
    yield "</h3>"
    yield f"<p>{escape(finding.summary)}</p>"
    where = f"{finding.where}; " if finding.where is not None else ""
    yield f'<p class="where">{escape(where)}{escape(finding.confidence)} confidence</p>'
    for advice in finding.advice:
        yield f'<div class="advice"><p><b>Try:</b> {escape(advice.text)}</p>'
        if advice.code is not None:
            yield f"<pre>{escape(advice.code)}</pre>"
        yield "</div>"
    yield "</section>"


def _budget(parts: Sequence[BudgetPart]) -> Iterator[str]:
    """One bar, exposed time in vermillion and hatched, and its legend."""
    colours = _colours(parts)
    yield '<div class="budget">'
    for part, colour in zip(parts, colours, strict=True):
        words = escape(f"{part.words}: {ms(part.ns)}, {percent(part.share)}")
        yield (
            f'<div class="{_hatch(part)}" title="{words}" style="background-color:'
            f'{colour};width:{part.share * 100:.3f}%"></div>'
        )
    yield '</div><ul class="legend">'
    for part, colour in zip(parts, colours, strict=True):
        name = "name hidden" if part.exposed else "name"
        yield (
            f'<li><span class="swatch {_hatch(part)}" style="background-color:'
            f'{colour}"></span><span class="{name}">{escape(part.words)}</span>'
            f"<span>{escape(ms(part.ns))}</span><span>{percent(part.share)}</span></li>"
        )
    yield "</ul>"


def _hatch(part: BudgetPart) -> str:
    return "hatched" if part.exposed else ""


def _colours(parts: Sequence[BudgetPart]) -> list[str]:
    """By what a part is, as in the timeline below it: of every run the same."""
    return [EXPOSED if part.exposed else PARTS[part.part] for part in parts]


def _table(table: Table) -> Iterator[str]:
    yield f'<h2>{escape(table.title)}</h2><div class="scroll"><table><thead><tr>'
    for column in table.columns:
        left = ' class="left"' if column.left else ""
        yield f'<th{left} title="{escape(column.hint)}">{escape(column.title)}</th>'
    yield "</tr></thead><tbody>"
    for row in table.rows:
        yield "<tr>"
        for column, cell in zip(table.columns, row, strict=True):
            yield _cell(column, cell)
        yield "</tr>"
    yield "</tbody></table></div>"
    if table.note is not None:
        yield f'<p class="facts">{escape(table.note)}</p>'


def _cell(column: Column, cell: Cell) -> str:
    classes = ["left"] if column.left else []
    style = ""
    if cell.share:
        classes.append("bar")
        style = f' style="--share:{cell.share * 100:.1f}%"'
    if column.exposed:
        classes.append("exposed")
    if cell.alert:
        classes.append("mismatch")
    title = f' title="{escape(cell.text)}"' if column.left else ""
    kind = f' class="{" ".join(classes)}"' if classes else ""
    return f"<td{kind}{style}{title}>{escape(cell.text)}</td>"


def _list(title: str, lines: Iterable[str]) -> Iterator[str]:
    items = [f"<li>{escape(line)}</li>" for line in lines]
    if items:
        yield f"<h2>{escape(title)}</h2><ul>"
        yield from items
        yield "</ul>"
