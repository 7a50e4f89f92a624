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
    content_of,
)
from fsdpdoctor.renderers.tables import Cell
from fsdpdoctor.report import Report
from fsdpdoctor.report.comparison import Difference, Subject, compare
from fsdpdoctor.report.value import ByCause
from fsdpdoctor.schema import COLLECTIVE_KINDS
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.components import (
    CAUSES_EXPLAINED,
    Context,
    byte_words,
    columns,
    data_table,
    ns_words,
    side_by_side,
    so_far,
)
from fsdpdoctor_dashboard.pages.findings import cards
from fsdpdoctor_dashboard.pages.verdict_box import verdict_box

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
        verdict_box(context, run, content),
        *[html.P(fact, className="faint") for fact in content.facts],
        *so_far(run),
        *[html.P(alert, className="alert") for alert in content.alerts],
        *_dear_recording(run.report),
        html.H2("Findings, those with most to gain first"),
        *cards(context, run, content),
        html.H2(f"Step budget: {content.budget_total}"),
        *_budget(context, run),
        html.H2("Exposed time by cause"),
        *_causes(run.report),
        *_trust(run.report, content),
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


def _budgets(run: OpenRun) -> dict[int, dict[str, int]]:
    measures = run.measures
    return {
        rank.rank: dict(replace(measures, ranks=(rank,)).budget_ns_per_step())
        for rank in measures.ranks
    }


def _budget(context: Context, run: OpenRun) -> Iterator[Component]:
    """One bar per rank, all of both runs to the scale of the slowest."""
    budgets = _budgets(run)
    every = (b for each in context.runs for b in _budgets(each).values())
    longest = max((sum(budget.values()) for budget in every), default=0)
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
                role="img",
                title=_said(rank, budget),
            ),
            html.Span(ms(sum(budget.values())), className="faint"),
        ]
    many = " many" if len(budgets) > MANY_RANKS else ""
    yield html.Div(cells, className=f"budget{many}")
    yield _legend(run.report)


def _said(rank: int, budget: dict[str, int]) -> str:
    """A bar in words, the largest part first."""
    parts = sorted(budget.items(), key=lambda item: -item[1])
    named = [f"{PART_WORDS.get(p, p)} {ms(ns)}" for p, ns in parts if ns]
    return f"rank {rank}: {', '.join(named)}"


def _piece(part: str, ns: int, longest: int) -> Component:
    words = PART_WORDS.get(part, part)
    return html.I(
        className="hatched" if part.startswith("exposed_") else "",
        style={"width": f"{100 * ns / longest:.4f}%", "backgroundColor": _colour(part)},
        title=f"{words}: {ms(ns)}",
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
        parts = _by_cause(exposed.by_kind_and_cause[kind.key])
        words = ", ".join(f"{CAUSE_TITLES[cause]} {ms(ns)}" for cause, ns in parts)
        cells += [
            html.Span(kind.label),
            html.Div(
                [
                    html.I(
                        className=f"cause {cause}",
                        style={"width": f"{100 * ns / longest:.3f}%"},
                    )
                    for cause, ns in parts
                ],
                className="stack",
                role="img",
                title=f"exposed {kind.label}: {words}",
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
            for cause, ns in _by_cause(exposed.by_cause)
        ],
        className="legend causes",
    )


UNTOLD = "wire_or_straggler"
CAUSE_TITLES = CAUSE_WORDS | {UNTOLD: "straggler or wire"}


def _by_cause(found: ByCause) -> list[tuple[str, int]]:
    """What is known and not 0; two causes that cannot be told apart are one."""
    told = {cause: getattr(found, cause) for cause in CAUSES}
    if found.wire_or_straggler is not None:
        told |= {"straggler": 0, "wire": 0, UNTOLD: found.wire_or_straggler}
    return [(cause, ns) for cause, ns in told.items() if ns]


def _trust(report: Report, content: Content) -> Iterator[Component]:
    yield html.H2("How far to trust it")
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
