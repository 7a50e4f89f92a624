"""Findings beside the timeline: each opens in place, with its words, its code and its
places, whose marks are lit on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.renderers.report_view import Content, FindingWords
from fsdpdoctor_dashboard.data.rank_tracks import (
    Stretch,
    shown_places,
    stretches_of,
)
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.components import Context, with_codes, with_data
from fsdpdoctor_dashboard.pages.findings import code_block


def timeline_cards(
    context: Context, run: OpenRun, content: Content
) -> Iterator[Component]:
    """One card for each finding, in the order of the report."""
    rows = run.report.findings
    most = max((row.cost_ns_per_step or 0 for row in rows), default=0) or 1
    for at, (row, words) in enumerate(zip(rows, content.findings, strict=True)):
        named = shown_places(run.measures, row)
        places = stretches_of(run.measures, run.store, named)
        card = html.Details(
            [
                html.Summary(_head(words, (row.cost_ns_per_step or 0) / most)),
                html.Div(
                    [
                        *_stepper(places, typical=not row.places),
                        *_body(context, words),
                    ],
                    className="inside",
                ),
            ],
            className=f"card {words.severity}",
        )
        yield with_data(
            card,
            finding=str(at),
            run=run.id,
            kept=f"{run.id} {words.code} {_where(words)}",
            places=";".join(f"{p.rank},{p.start},{p.end}" for p in places),
        )


def _head(words: FindingWords, share: float) -> list[Component | str]:
    content: list[Component | str] = [html.B(f"{words.code} {words.name}")]
    if words.where is not None:
        content.append(html.Span(_where(words)))
    if share:
        bar = html.I(style={"width": f"{100 * share:.1f}%"})
        content.append(html.Span(bar, className="track"))
    if words.cost is not None:
        content.append(html.Span(words.cost, className="faint"))
    return content


def _where(words: FindingWords) -> str:
    """Folded, a card does not show the summary, which has the model."""
    where = words.where or ""
    return where if words.model is None else f"{words.model}: {where}"


def _stepper(places: list[Stretch], *, typical: bool) -> Iterator[Component]:
    """Which of its places is shown; finding_cards.js goes from one to the next."""
    if not places:
        yield html.P("It has no place on the timeline.", className="faint")
        return
    words = "a typical step" if typical else f"place 1 of {len(places)}"
    if typical:
        words += ": it is about all of them"
    parts: list[Component] = [html.Span(words, role="status")]
    if len(places) > 1:
        parts = [
            with_data(html.Button("\u2039", title="the place before"), place="-1"),
            *parts,
            with_data(html.Button("\u203a", title="the next place"), place="1"),
        ]
    yield html.Div(parts, className="places")


def _body(context: Context, words: FindingWords) -> Iterator[Component]:
    yield html.P(with_codes(context, words.summary))
    for advice in words.advice:
        text = [html.B("Try: "), *with_codes(context, advice.text)]
        yield html.P(text, className="advice")
        if advice.code is not None:
            yield from code_block(advice.code)
    yield html.P(f"{words.confidence} confidence", className="faint")
