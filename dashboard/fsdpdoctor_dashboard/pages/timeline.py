"""Timeline: the picture, with the findings beside it."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.renderers.report_view import FindingWords, content_of
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.components import (
    PER_STEP,
    Context,
    on_timeline,
    shown_place,
    so_far,
    with_data,
)
from fsdpdoctor_dashboard.timeline.component import Timeline

SIDE = "timeline-side"
"""The id of what stands beside the picture: of a growing run it alone is made anew."""


def page(context: Context) -> Component:
    """One run's timeline, or two runs' with their first shared step together."""
    first = context.run
    perfetto = f"{context.base}export/perfetto?run={first.id}"
    return html.Main(
        [
            html.Aside(side(context), className="side", id=SIDE),
            Timeline(
                id="timeline",
                runs=[
                    {"id": run.id, "offset": aligned(first, run)}
                    for run in context.runs
                ],
                base=context.base,
                theme=context.theme,
                perfetto=perfetto,
            ),
        ],
        className="full",
    )


def aligned(first: OpenRun, other: OpenRun) -> int:
    """What to add to the other run's time, so that a step both have starts together."""
    starts, theirs = _step_starts(first), _step_starts(other)
    shared = sorted(set(starts) & set(theirs))
    if not shared:
        return 0
    return starts[shared[0]] - theirs[shared[0]]


def _step_starts(run: OpenRun) -> dict[int, int]:
    steps = run.measures.ranks[0].steps
    clock = run.measures.alignment.clocks[run.measures.ranks[0].rank]
    judged = run.measures.ranks[0].judged
    # The first judged step where there is one: warm-up steps differ for no reason
    # that a comparison is about.
    rows = judged if judged.any() else steps.step >= 0
    starts = clock.to_reference(steps.start_ns[rows]) - run.store.origin_ns
    return dict(zip(steps.step[rows].tolist(), starts.tolist(), strict=True))


def side(context: Context) -> list[Component]:
    """The findings of each run, with the places to jump to."""
    parts: list[Component] = []
    for run in context.runs:
        content = content_of(run.report)
        name = f" of {run.id}" if len(context.runs) > 1 else ""
        parts += [html.H2(f"Findings{name}"), *so_far(run)]
        if content.no_findings is not None:
            parts.append(html.P(content.no_findings, className="faint"))
        if run.report.findings:
            parts.append(html.P(PER_STEP, className="faint small"))
        costs = [row.cost_ns_per_step or 0 for row in run.report.findings]
        most = max(costs, default=0) or 1
        for row, words, cost in zip(
            run.report.findings, content.findings, costs, strict=True
        ):
            place = shown_place(run, row)
            stretch = on_timeline(run, place) if place is not None else None
            jump = None
            if place is not None and stretch is not None:
                jump = f"{place.rank},{stretch[0]},{stretch[1]}"
            parts.append(_card(words, run.id, jump, cost / most))
    return parts


def _card(words: FindingWords, run: str, jump: str | None, share: float) -> Component:
    content: list[Component | str] = [html.B(f"{words.code} {words.name}")]
    if words.where is not None:
        content.append(html.Span(words.where))
    if share:
        content.append(
            html.Span(html.I(style={"width": f"{100 * share:.1f}%"}), className="track")
        )
    if words.cost is not None:
        content.append(html.Span(words.cost, className="faint"))
    card = html.Button(
        content,
        className=f"card {words.severity}",
        title=words.summary,
        disabled=jump is None,
    )
    return card if jump is None else with_data(card, jump=jump, run=run)
