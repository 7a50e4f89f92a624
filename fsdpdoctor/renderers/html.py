"""One self-contained HTML page: nothing from the network, and no script of its own."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.renderers.formatting import visible_lines
from fsdpdoctor.renderers.html_style import STYLE
from fsdpdoctor.renderers.palette import CAUSES, EXPOSED, OUTLOOK, PARTS
from fsdpdoctor.renderers.reading.finding_order import NOTHING, reading
from fsdpdoctor.renderers.reading.outlook import (
    CAUSE_TITLES,
    known_causes,
    outlook,
    outlook_words,
)
from fsdpdoctor.renderers.report_view import (
    BudgetPart,
    Content,
    FindingWords,
    content_of,
)
from fsdpdoctor.renderers.tables import Cell, Column, Table
from fsdpdoctor.report.value import Report
from fsdpdoctor.schema import COLLECTIVE_KINDS

# Everything is refused but the page's own style sheet and the widths of its bars.
CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """A timeline in the report, that brings its own script."""

    title: str
    note: str  # what it shows of the run
    style: str
    body: str
    policy: str  # that allows it and nothing else
    jumps: Mapping[int, str] = field(default_factory=dict)
    """By a finding's place in the report: "rank,from,until" on the timeline."""


def render(
    report: Report, addition: Addition | None = None, picture: str | None = None
) -> str:
    """The report as a page that opens from disk.

    `picture` is an SVG that shows it to others: it can be saved from the page.
    """
    policy = addition.policy if addition else CONTENT_SECURITY_POLICY
    style = STYLE + addition.style if addition else STYLE
    content = content_of(report)
    title = report.run.model_class or "run"
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            policy_tag(policy),
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>fsdpdoctor: {escape(title)}</title>",
            *(_preview(content) if picture else ()),
            f"<style>{style}</style></head><body>",
            *_body(report, content, addition),
            *(_picture(picture) if picture else ()),
            f"<footer>fsdpdoctor, report format {report.schema_version}</footer>",
            "</body></html>\n",
        )
    )


def _preview(content: Content) -> Iterator[str]:
    """What pages that preview links show of this one, where it is put on a server."""
    said = {
        "og:title": content.headline,
        "og:description": " ".join(content.facts),
        "og:image": "card.svg",
    }
    for name, words in said.items():
        yield f'<meta property="{name}" content="{escape(words)}">'


def _picture(drawn: str) -> Iterator[str]:
    data = base64.b64encode(drawn.encode()).decode()
    yield '<h2>Picture</h2><p><button data-picture="1">Save as PNG</button></p>'
    yield (
        '<div class="card"><img alt="The verdict, the budget and a step of this run" '
        f'src="data:image/svg+xml;base64,{data}" width="600"></div>'
    )


def _added(addition: Addition) -> Iterator[str]:
    yield f"<h2>{escape(addition.title)}</h2>"
    yield f'<p class="facts">{escape(addition.note)}</p>'
    yield addition.body


def policy_tag(policy: str = CONTENT_SECURITY_POLICY) -> str:
    """What keeps a page from loading or running anything that it does not have."""
    return f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'


def _body(report: Report, content: Content, addition: Addition | None) -> Iterator[str]:
    """In the dashboard's order: the verdict, what to do, the picture, the figures."""
    yield f"<h1>{escape(content.headline)}</h1>"
    yield from _outlook(report)
    for line in content.lead:
        yield f'<p class="lead">{escape(line)}</p>'
    best = report.verdict.best_change
    if best is not None and best.code:
        yield '<div class="best">The best change:'
        yield from _code(visible_lines(best.code.strip("\n")), addition)
        yield "</div>"
    for fact in content.facts:
        yield f'<p class="facts">{escape(fact)}</p>'
    for alert in content.alerts:
        yield f'<p class="alert">{escape(alert)}</p>'
    if addition is not None:
        yield from _added(addition)
    yield "<h2>Findings, those with most to gain first</h2>"
    if content.no_findings is not None:
        yield f"<p>{escape(content.no_findings)}</p>"
    yield from _findings(report, content, addition)
    if content.budget:
        yield f"<h2>Step budget: {escape(content.budget_total)}</h2>"
        yield from _budget(content.budget)
    yield from _causes(report)
    for table in (
        *content.units,
        content.no_grad,
        content.others,
        content.collectives,
        content.ranks,
    ):
        if table is not None:
            yield from table_lines(table)
    yield from _list("Not judged", content.not_judged)
    yield from _list("How far to trust it", content.health)


def _outlook(report: Report) -> Iterator[str]:
    """Now, after the change, and the floor: one bar, whose whole is the mean step."""
    ends = outlook(report)
    if ends is None:
        return
    now, after, floor = ends
    pieces = {"floor": floor, "left": after - floor, "gain": now - after}
    words = f"The mean step: {outlook_words(ends)}."
    yield f'<div class="outlook" role="img" aria-label="{escape(words)}">'
    for kind, ns in pieces.items():
        if ns > 0:
            yield (
                f'<div class="{kind}" style="background-color:{OUTLOOK[kind]};'
                f'width:{100 * ns / now:.3f}%"></div>'
            )
    yield f"</div><p>{escape(words)}</p>"


def _findings(
    report: Report, content: Content, addition: Addition | None
) -> Iterator[str]:
    """Each with what is part of its cost; what has nothing to change in one line."""
    order = reading(report.findings)

    def made(at: int) -> Iterator[str]:
        parts = [line for part in order.parts.get(at, ()) for line in made(part)]
        yield from _finding(content.findings[at], at, parts, addition)

    for at in order.acting:
        yield from made(at)
    if order.folded:
        names = [
            f"{report.findings[at].code} {report.findings[at].name}"
            for at in order.folded
        ]
        words = escape(f"{NOTHING} about {', '.join(names)}")
        yield f'<details class="folded"><summary>{words}</summary>'
        for at in order.folded:
            yield from made(at)
        yield "</details>"


def _finding(
    finding: FindingWords, at: int, parts: Sequence[str], addition: Addition | None
) -> Iterator[str]:
    yield f'<section class="finding {escape(finding.severity)}"><h3>'
    yield f'<span class="severity">{escape(finding.severity)}</span>'
    yield f"<span>{escape(finding.code)} {escape(finding.name)}</span>"
    if finding.cost is not None:
        yield f'<span class="cost">{escape(finding.cost)}</span>'
    yield "</h3>"
    if addition is not None and at in addition.jumps:
        jump = escape(addition.jumps[at])
        yield f'<button data-jump="{jump}">Show {escape(finding.code)}</button>'
    yield f"<p>{escape(finding.summary)}</p>"
    where = f"{finding.where}; " if finding.where is not None else ""
    yield f'<p class="where">{escape(where)}{escape(finding.confidence)} confidence</p>'
    for advice in finding.advice:
        yield f'<div class="advice"><p><b>Try:</b> {escape(advice.text)}</p>'
        if advice.code is not None:
            yield from _code(advice.code, addition)
        yield "</div>"
    if parts:
        yield '<div class="parts">'
        yield from parts
        yield "</div>"
    yield "</section>"


def _code(code: str, addition: Addition | None) -> Iterator[str]:
    """Code, with a button where the page has a script that copies."""
    if addition is not None:
        yield '<div><button data-copy="1">Copy</button>'
    yield f"<pre>{escape(code)}</pre>"
    if addition is not None:
        yield "</div>"


def _causes(report: Report) -> Iterator[str]:
    """What compute waited for, by kind: all bars to one scale."""
    exposed = report.exposed_ns_per_step
    kinds = [kind for kind in COLLECTIVE_KINDS if getattr(exposed, kind.key)]
    if not kinds:
        return
    longest = max(getattr(exposed, kind.key) for kind in kinds)
    yield "<h2>Exposed time by cause, per step on average</h2>"
    yield '<div class="stacks">'
    for kind in kinds:
        parts = known_causes(exposed.by_kind_and_cause[kind.key])
        said = ", ".join(f"{CAUSE_TITLES[cause]} {ms(ns)}" for cause, ns in parts)
        yield (
            f'<span>{escape(kind.label)}</span><div class="bar" role="img" '
            f'aria-label="{escape(f"exposed {kind.label}: {said}")}">'
        )
        for cause, ns in parts:
            yield (
                f'<div style="background-color:{CAUSES[cause]};'
                f'width:{100 * ns / longest:.2f}%"></div>'
            )
        yield f"</div><span>{escape(ms(getattr(exposed, kind.key)))}</span>"
    yield '</div><ul class="legend">'
    for cause, ns in known_causes(exposed.by_cause):
        yield (
            f'<li><span class="swatch" style="background-color:{CAUSES[cause]}"></span>'
            f'<span class="name">{escape(CAUSE_TITLES[cause])}</span>'
            f"<span>{escape(ms(ns))}</span></li>"
        )
    yield "</ul>"


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


def table_lines(table: Table) -> Iterator[str]:
    """A table under its title."""
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
