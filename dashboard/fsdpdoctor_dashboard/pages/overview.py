"""Overview: what hurts, in ten seconds. Plain HTML: plotly has no place here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.renderers.palette import PARTS
from fsdpdoctor.renderers.reading.outlook import CAUSE_TITLES, known_causes
from fsdpdoctor.renderers.report_view import (
    PART_WORDS,
    Content,
    content_of,
)
from fsdpdoctor.report import Report
from fsdpdoctor.schema import COLLECTIVE_KINDS
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.comparison import differences
from fsdpdoctor_dashboard.pages.components import (
    CAUSES_EXPLAINED,
    Context,
    side_by_side,
    so_far,
    with_codes,
    with_terms,
    with_tip,
)
from fsdpdoctor_dashboard.pages.findings import cards
from fsdpdoctor_dashboard.pages.verdict_box import verdict_box

MANY_RANKS = 16
"""With more the fastest, the middle and the slowest stand for all, which are folded."""


MOST_BARS = 512
"""Ranks that have a bar each among those that are folded; of more, SHOWN_BARS have: the
slowest. A page of 4,096 was 12 MB."""
SHOWN_BARS = 128


def page(context: Context) -> Component:
    """The budget, the findings with the place to jump to, and how far to trust it."""
    sides = side_by_side(context, [html.Div(_of(context, run)) for run in context.runs])
    if len(context.runs) == 1:
        return html.Main(sides)
    return html.Main([*differences(*context.runs[:2]), sides])


def _of(context: Context, run: OpenRun) -> list[Component]:
    content = content_of(run.report)
    return [
        verdict_box(context, run, content),
        *[html.P(with_terms(fact), className="faint") for fact in content.facts],
        *so_far(run),
        *[html.P(alert, className="alert") for alert in content.alerts],
        *_dear_recording(run.report),
        html.H2("Findings, those with most to gain first"),
        *cards(context, run, content),
        html.H2(f"Step budget: {content.budget_total}"),
        *_budget(context, run),
        html.H2("Exposed time by cause, per step on average"),
        *_causes(run.report),
        *_trust(context, run.report, content),
    ]


DEAR = 0.05
"""Of the step's time: recording that costs more makes the figures another run's."""


def _dear_recording(report: Report) -> Iterator[Component]:
    share = report.recorder.overhead_share
    if share is not None and share > DEAR:
        yield html.P(
            f"Recording itself took {percent(share)} of the step time: without it, "
            "steps are shorter, and the host is later than it would be.",
            className="alert",
        )


def _budget(context: Context, run: OpenRun) -> Iterator[Component]:
    """One bar per rank, all of both runs to the scale of the slowest."""
    budgets = run.sketches.budgets
    every = (b for each in context.runs for b in each.sketches.budgets.values())
    longest = max((sum(budget.values()) for budget in every), default=0)
    if not longest:
        yield html.P("Cannot tell: no whole step was recorded.", className="faint")
        return
    if len(budgets) > MANY_RANKS:
        yield _bars({rank: budgets[rank] for rank in typical(budgets)}, longest)
        shown = folded(budgets)
        words = f"All {len(budgets)} ranks"
        if len(shown) < len(budgets):
            words = f"The {len(shown)} slowest of {len(budgets):,} ranks"
        bars = _bars({rank: budgets[rank] for rank in shown}, longest, "budget many")
        yield html.Details([html.Summary(words), bars])
    else:
        yield _bars(budgets, longest)
    yield _legend(run.report)
    yield html.P("Shares are of the mean step.", className="faint")


def _bars(
    budgets: Mapping[int, dict[str, int]], longest: int, kind: str = "budget"
) -> Component:
    cells: list[Component] = []
    for rank, budget in budgets.items():
        pieces = [_piece(part, ns, longest) for part, ns in budget.items() if ns]
        bar = with_tip(html.Div(pieces, className="stack"), _said(rank, budget))
        took = html.Span(ms(sum(budget.values())), className="faint")
        cells += [html.Span(f"rank {rank}"), bar, took]
    return html.Div(cells, className=kind)


def folded(budgets: Mapping[int, Mapping[str, int]]) -> list[int]:
    """The ranks whose bars are folded: all, or of too many the slowest."""
    if len(budgets) <= MOST_BARS:
        return [*budgets]
    order = sorted(budgets, key=lambda rank: (-sum(budgets[rank].values()), rank))
    return sorted(order[:SHOWN_BARS])


def typical(budgets: Mapping[int, Mapping[str, int]]) -> list[int]:
    """The fastest rank, the one in the middle, and the slowest."""
    order = sorted(budgets, key=lambda rank: (sum(budgets[rank].values()), rank))
    return [order[0], order[len(order) // 2], order[-1]]


def _said(rank: int, budget: dict[str, int]) -> str:
    """A bar in words, the largest part first."""
    parts = sorted(budget.items(), key=lambda item: -item[1])
    named = [f"{PART_WORDS.get(p, p)} {ms(ns)}" for p, ns in parts if ns]
    return f"rank {rank}: {', '.join(named)}"


def _piece(part: str, ns: int, longest: int) -> Component:
    return html.I(
        className="hatched" if part.startswith("exposed_") else "",
        style={"width": f"{100 * ns / longest:.4f}%", "backgroundColor": _colour(part)},
    )


def _colour(part: str) -> str:
    return PARTS.get(part, "var(--exposed-mark)")


SEEN_SHARE = 0.0005
"""A smaller part would be listed as 0.0 %."""


def _legend(report: Report) -> Component:
    total = sum(report.budget_ns_per_step.values()) or 1
    items = []
    for part, ns in report.budget_ns_per_step.items():
        if ns < SEEN_SHARE * total:
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
                        with_terms(PART_WORDS.get(part, part.replace("_", " "))),
                        className="exposed" if exposed else "",
                    ),
                    html.Span(ms(ns)),
                    html.Span(percent(ns / total), className="faint"),
                ]
            )
        )
    return html.Ul(items, className="legend")


def _causes(report: Report) -> Iterator[Component]:
    """What compute waited for: a bar of causes for each kind, all to one scale."""
    exposed = report.exposed_ns_per_step
    if exposed.total is None:
        yield html.P("Cannot tell: the source shows no stalls.", className="faint")
        return
    kinds = [kind for kind in COLLECTIVE_KINDS if getattr(exposed, kind.key)]
    if not kinds:
        yield html.P("Compute never stood still for a collective.")
        return
    longest = max(getattr(exposed, kind.key) for kind in kinds)
    cells: list[Component] = []
    for kind in kinds:
        parts = known_causes(exposed.by_kind_and_cause[kind.key])
        words = ", ".join(f"{CAUSE_TITLES[cause]} {ms(ns)}" for cause, ns in parts)
        cells += [
            html.Span(kind.label),
            with_tip(
                html.Div(
                    [
                        html.I(
                            className=f"cause {cause}",
                            style={"width": f"{100 * ns / longest:.3f}%"},
                        )
                        for cause, ns in parts
                    ],
                    className="stack",
                ),
                f"exposed {kind.label}: {words}",
            ),
            html.Span(ms(getattr(exposed, kind.key)), className="exposed"),
        ]
    yield html.Div(cells, className="budget", id="causes")
    yield html.Ul(
        [
            html.Li(
                [
                    html.Span(className=f"swatch cause {cause}"),
                    html.Span(
                        [
                            html.B(CAUSE_TITLES[cause]),
                            html.Span(
                                f": {CAUSES_EXPLAINED[cause]}", className="faint"
                            ),
                        ]
                    ),
                    html.Span(ms(ns)),
                ]
            )
            for cause, ns in known_causes(exposed.by_cause)
        ],
        className="legend causes",
    )


def _trust(context: Context, report: Report, content: Content) -> Iterator[Component]:
    yield html.H2("How far to trust it")
    for line in content.health:
        yield html.P(with_terms(line))
    if content.not_judged:
        yield html.Details(
            [
                html.Summary(f"Not judged ({len(report.not_judged)})"),
                *[
                    html.P(with_codes(context, line), className="faint")
                    for line in content.not_judged
                ],
            ]
        )
    if report.run.command:
        yield html.P(visible(" ".join(report.run.command)), className="faint")
