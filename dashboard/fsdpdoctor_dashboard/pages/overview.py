"""Overview: what hurts, in ten seconds. Plain HTML: plotly has no place here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.renderers.formatting import unit_name, visible
from fsdpdoctor.renderers.palette import PARTS
from fsdpdoctor.renderers.report_view import (
    CAUSE_WORDS,
    PART_WORDS,
    Content,
    FindingWords,
    content_of,
)
from fsdpdoctor.renderers.tables import Cell
from fsdpdoctor.report import Report
from fsdpdoctor.report.comparison import Difference, Subject, compare
from fsdpdoctor.schema import COLLECTIVE_KINDS
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.components import (
    CAUSES_EXPLAINED,
    Context,
    byte_words,
    columns,
    data_table,
    ns_words,
    place_link,
    side_by_side,
    so_far,
    with_data,
)

MANY_RANKS = 16
"""From here on a rank's bar is half as high, so that 64 fit a screen."""


def page(context: Context) -> Component:
    """The budget, the findings with the place to jump to, and how far to trust it."""
    sides = side_by_side(context, [html.Div(_of(context, run)) for run in context.runs])
    if len(context.runs) == 1:
        return html.Main(sides)
    return html.Main([*_differences(*context.runs[:2]), sides])


def _differences(a: OpenRun, b: OpenRun) -> Iterator[Component]:
    """What the comparison says of two runs: settings, then figures beyond noise."""
    found = compare(
        *(Subject(name=r.id, measures=r.measures, report=r.report) for r in (a, b))
    )
    yield html.H1(f"From {visible(a.id)} to {visible(b.id)}")
    before, after = found.step_time_ns
    yield html.P(f"Median step {ns_words(before)}, then {ns_words(after)}.")
    if not found.differences:
        yield html.P("No setting differs, and no figure by more than its noise.")
    else:
        rows = [_difference(difference) for difference in found.differences]
        words = columns("figure", "unit", left=("figure", "unit"))
        numbers = columns(visible(a.id), visible(b.id), "change")
        yield data_table("differences", (*words, *numbers), rows)
    for line in found.not_compared:
        yield html.P(f"Not compared: {visible(line)}", className="faint")


def _difference(found: Difference) -> list[Cell]:
    words = {"time": ns_words, "bytes": byte_words}.get(found.kind)

    def said(value: object) -> str:
        if words is not None and isinstance(value, int | float):
            return words(value)
        return "-" if value is None else str(value)

    sign = "+" if (found.change or 0) > 0 else ""
    change = "" if found.change is None else f"{sign}{said(found.change)}"
    return [
        Cell(text=f"{found.kind}: {_figure(found.figure)}"),
        Cell(text=unit_name(found.unit) if found.unit else "-"),
        Cell(text=said(found.a)),
        Cell(text=said(found.b)),
        Cell(text=change, value=found.change),
    ]


def _figure(name: str) -> str:
    """A figure's place in the report, in words."""
    group, _, part = name.rpartition(".")
    if group == "budget_ns_per_step":
        return PART_WORDS.get(part, part)
    return name.replace("_ns", "").replace(".", ", ").replace("_", " ")


def _of(context: Context, run: OpenRun) -> list[Component]:
    content = content_of(run.report)
    return [
        html.H1(content.headline),
        *[html.P(line, className="lead") for line in content.lead],
        *[html.P(fact, className="faint") for fact in content.facts],
        *so_far(run),
        *[html.P(alert, className="alert") for alert in content.alerts],
        html.H2(f"Step budget: {content.budget_total}"),
        *_budget(run),
        html.H2("Exposed time by cause"),
        *_causes(run.report),
        html.H2("Findings"),
        *_findings(context, run, content),
        *_trust(run.report, content),
    ]


def _budget(run: OpenRun) -> Iterator[Component]:
    """One bar per rank, all to the scale of the slowest."""
    measures = run.measures
    budgets = {
        rank.rank: replace(measures, ranks=(rank,)).budget_ns_per_step()
        for rank in measures.ranks
    }
    longest = max((sum(budget.values()) for budget in budgets.values()), default=0)
    if not longest:
        yield html.P("Cannot tell: no whole step was recorded.", className="faint")
        return
    cells: list[Component] = []
    for rank, budget in budgets.items():
        cells += [
            html.Span(f"rank {rank}"),
            html.Div(
                [_piece(part, ns, longest) for part, ns in budget.items() if ns],
                className="stack",
            ),
            html.Span(ms(sum(budget.values())), className="faint"),
        ]
    many = " many" if len(budgets) > MANY_RANKS else ""
    yield html.Div(cells, className=f"budget{many}")
    yield _legend(run.report)


def _piece(part: str, ns: int, longest: int) -> Component:
    words = PART_WORDS.get(part, part)
    return html.I(
        className="hatched" if part.startswith("exposed_") else "",
        style={"width": f"{100 * ns / longest:.4f}%", "backgroundColor": _colour(part)},
        title=f"{words}: {ms(ns)}",
    )


def _colour(part: str) -> str:
    return PARTS.get(part, "var(--exposed-mark)")


def _legend(report: Report) -> Component:
    total = sum(report.budget_ns_per_step.values()) or 1
    items = []
    for part, ns in report.budget_ns_per_step.items():
        if not ns:
            continue
        hatched = " hatched" if part.startswith("exposed_") else ""
        exposed = part.startswith("exposed_") and part not in PARTS
        items.append(
            html.Li(
                [
                    html.Span(
                        className=f"swatch{hatched}",
                        style={"backgroundColor": _colour(part)},
                    ),
                    html.Span(
                        PART_WORDS.get(part, part.replace("_", " ")),
                        className="exposed" if exposed else "",
                    ),
                    html.Span(ms(ns)),
                    html.Span(percent(ns / total), className="faint"),
                ]
            )
        )
    return html.Ul(items, className="legend")


def _causes(report: Report) -> Iterator[Component]:
    """What compute waited for, in a table whose bars share one scale."""
    exposed = report.exposed_ns_per_step
    if exposed.total is None:
        yield html.P("Cannot tell: the source shows no stalls.", className="faint")
        return
    kinds = [kind for kind in COLLECTIVE_KINDS if getattr(exposed, kind.key)]
    if not kinds:
        yield html.P("Compute never stood still for a collective.")
        return
    cells = {
        (kind, cause): getattr(exposed.by_kind_and_cause[kind.key], cause)
        for kind in kinds
        for cause in CAUSES
    }
    most = max((ns for ns in cells.values() if ns), default=1)
    rows = [
        [
            Cell(text=kind.label),
            *[_cause(cells[kind, cause], most) for cause in CAUSES],
            Cell(text=ms(getattr(exposed, kind.key)), value=getattr(exposed, kind.key)),
        ]
        for kind in kinds
    ]
    words = CAUSE_WORDS.values()
    heads = columns("per step", *words, "total", left=("per step",), exposed=words)
    yield data_table("causes", heads, rows)
    explained = [f"{CAUSE_WORDS[c]}: {words}" for c, words in CAUSES_EXPLAINED.items()]
    yield html.P(f"{'; '.join(explained)}.", className="faint small")


def _cause(ns: int | None, most: int) -> Cell:
    return Cell(text=ns_words(ns), value=ns, share=ns / most if ns else None)


def _findings(context: Context, run: OpenRun, content: Content) -> Iterator[Component]:
    if content.no_findings is not None:
        yield html.P(content.no_findings)
    for row, words in zip(run.report.findings, content.findings, strict=True):
        place = row.places[0] if row.places else None
        link = place_link(context, run, place) if place else None
        yield finding(words, link)


def finding(words: FindingWords, link: str | None) -> Component:
    """One finding as a card, with its advice and the place to jump to."""
    head: list[Component] = [
        html.Span(words.severity, className="level"),
        html.Span(f"{words.code} {words.name}"),
    ]
    if words.cost is not None:
        head.append(html.Span(words.cost, className="cost"))
    if link is not None:
        head.append(html.A("Show on the timeline", href=link, className="button"))
    where = f"{words.where}; " if words.where else ""
    parts: list[Component] = [
        html.H3(head),
        html.P(words.summary),
        html.P(f"{where}{words.confidence} confidence", className="faint"),
    ]
    for advice in words.advice:
        parts.append(html.P([html.B("Try: "), advice.text], className="advice"))
        if advice.code is not None:
            summary = html.Summary(f"Code, {len(advice.code.splitlines())} lines")
            parts.append(html.Details([summary, *_code(advice.code)]))
    return html.Section(parts, className=f"finding {words.severity}")


def _code(code: str) -> list[Component]:
    copy = with_data(html.Button("Copy"), copy="")
    return [html.Div([copy, html.Pre(code)], className="code")]


def _trust(report: Report, content: Content) -> Iterator[Component]:
    cost = report.recorder
    yield html.H2("How far to trust it")
    if cost.overhead_share is not None:
        yield html.P(
            f"Recording cost {percent(cost.overhead_share)} of the step time, "
            f"over {cost.steps_recorded:,} recorded steps."
        )
    for line in content.health:
        yield html.P(line)
    if content.not_judged:
        yield html.Details(
            [
                html.Summary(f"Not judged ({len(report.not_judged)})"),
                *[html.P(line, className="faint") for line in content.not_judged],
            ]
        )
    if report.run.command:
        yield html.P(visible(" ".join(report.run.command)), className="faint")
