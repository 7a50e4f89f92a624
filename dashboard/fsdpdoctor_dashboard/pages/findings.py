"""Findings as cards: what can be gained first, each second of a step told once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dash import dcc, html
from dash.development.base_component import Component

from fsdpdoctor.quantities import ms, size
from fsdpdoctor.renderers.reading.finding_order import NOTHING, is_held, reading
from fsdpdoctor.renderers.report_view import Content, FindingWords
from fsdpdoctor.report.value import FindingRow
from fsdpdoctor_dashboard.data.rank_tracks import shown_places
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.components import (
    Context,
    place_link,
    with_codes,
    with_data,
)


def cards(context: Context, run: OpenRun, content: Content) -> Iterator[Component]:
    """Every finding: those that are part of another's cost under that one, those with
    nothing to change under one line.
    """
    if content.no_findings is not None:
        yield html.P(content.no_findings)
    rows = run.report.findings
    order = reading(rows)

    def made(at: int) -> Component:
        words, link = content.findings[at], _link(context, run, rows[at])
        if rows[at].part_of is not None:  # it stands under what it is counted in
            words = replace(words, cost=_own_cost(rows[at], rows))
        return finding(
            context, words, link, [made(part) for part in order.parts.get(at, ())]
        )

    yield from (made(at) for at in order.acting)
    if order.folded:
        names = [_name(rows[at], content.findings[at]) for at in order.folded]
        if run.named.model_of:  # one of each pass of each model
            names = [*dict.fromkeys(names)]
        yield html.Details(
            [
                html.Summary(f"{NOTHING} about {', '.join(names)}"),
                *[made(at) for at in order.folded],
            ],
            className="folded",
        )


def _name(row: FindingRow, words: FindingWords) -> str:
    of = "" if words.model is None else f" of {words.model}"
    return f"{row.code} {row.name}{of}"


def _own_cost(row: FindingRow, rows: Sequence[FindingRow]) -> str:
    """What a part of another finding's cost comes to."""
    held = "of it" if is_held(row, rows) else "partly of it,"
    said = [f"{held} {ms(row.cost_ns_per_step or 0)} per step"]
    if row.cost_bytes is not None:
        said.append(size(row.cost_bytes))
    return ", ".join(said)


def _link(context: Context, run: OpenRun, row: FindingRow) -> Component | None:
    """To its own place on the timeline, or to a step like the others."""
    places = shown_places(run.measures, row)
    href = place_link(context, run, places[0]) if places else None
    if href is None:
        return None
    words = "Show on the timeline" if row.places else "Show a typical step"
    about = html.Span(f" {row.code} {row.name}", className="unseen")
    return dcc.Link([words, about], href=href, className="button")


def finding(
    context: Context,
    words: FindingWords,
    link: Component | None,
    parts: list[Component],
) -> Component:
    """One finding as a card, with its advice, its place and what it holds."""
    head: list[Component] = [
        html.Span(words.severity, className="level"),
        html.Span(with_codes(context, f"{words.code} {words.name}")),
    ]
    if words.cost is not None:
        head.append(html.Span(words.cost, className="cost"))
    where = f"{words.where}; " if words.where else ""
    heading = html.H3(head)
    inside: list[Component] = [
        heading if link is None else html.Div([heading, link], className="head"),
        html.P(with_codes(context, words.summary)),
        html.P(f"{where}{words.confidence} confidence", className="faint"),
    ]
    for advice in words.advice:
        inside.append(
            html.P(
                [html.B("Try: "), *with_codes(context, advice.text)], className="advice"
            )
        )
        if advice.code is not None:
            summary = html.Summary(f"Code, {len(advice.code.splitlines())} lines")
            inside.append(html.Details([summary, *code_block(advice.code)]))
    if parts:
        inside.append(html.Div(parts, className="parts"))
    return html.Section(inside, className=f"finding {words.severity}")


def code_block(code: str) -> list[Component]:
    """Code with a button that copies it."""
    copy = with_data(html.Button("Copy"), copy="")
    # Wide code scrolls: a key has to be able to, as well.
    return [html.Div([copy, html.Pre(code, tabIndex=0)], className="code")]
