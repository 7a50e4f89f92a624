"""Timeline: the picture, with the findings beside it."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.renderers.report_view import content_of
from fsdpdoctor_dashboard.data.rank_tracks import middle_step
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.components import PER_STEP, Context, so_far
from fsdpdoctor_dashboard.pages.timeline_cards import timeline_cards
from fsdpdoctor_dashboard.timeline.component import Timeline

SIDE = "timeline-side"
"""The id of what stands beside the picture: of a growing run it alone is made anew."""


def page(context: Context) -> Component:
    """One run's timeline, or two runs' with a step that both have together."""
    first = context.run
    perfetto = f"{context.base}export/perfetto?run={first.id}"
    shared = shared_step(context.runs)
    shown = {} if shared is None else {"start": _around(context.runs, shared)}
    return html.Main(
        [
            html.Aside(side(context), className="side", id=SIDE),
            Timeline(
                id="timeline",
                runs=[
                    {"id": run.id, "offset": aligned(first, run, shared)}
                    for run in context.runs
                ],
                base=context.base,
                theme=context.theme,
                perfetto=perfetto,
                **shown,
            ),
        ],
        className="full",
    )


def shared_step(runs: Sequence[OpenRun]) -> int | None:
    """The step that runs are shown at: one like most of the first's where all have it,
    else the first that all have. None: there is one run, or no such step.
    """
    if len(runs) < 2:
        return None
    shared = set.intersection(*({*_judged_steps(run)} for run in runs))
    typical = middle_step(runs[0].measures.ranks[0])
    return typical if typical in shared else min(shared, default=None)


def aligned(first: OpenRun, other: OpenRun, step: int | None) -> int:
    """What to add to the other run's time, so that the step starts in both together."""
    if step is None:
        return 0
    return _judged_steps(first)[step][0] - _judged_steps(other)[step][0]


def _around(runs: Sequence[OpenRun], step: int) -> dict[str, int]:
    """From the shared begin of a step on until the longest of them ends."""
    stretches = [_judged_steps(run)[step] for run in runs]
    begin = stretches[0][0]
    return {"t0": begin, "t1": begin + max(end - start for start, end in stretches)}


def _judged_steps(run: OpenRun) -> dict[int, tuple[int, int]]:
    """Begin and end of the first rank's steps, as the timeline counts. The judged ones
    where there are any: warm-up differs for no reason that a comparison is about.
    """
    rank = run.measures.ranks[0]
    clock, steps = run.measures.alignment.clocks[rank.rank], rank.steps
    rows = rank.judged if rank.judged.any() else steps.step >= 0
    starts = clock.to_reference(steps.start_ns[rows]) - run.store.origin_ns
    ends = starts + steps.duration_ns[rows]
    stretches = zip(starts.tolist(), ends.tolist(), strict=True)
    return dict(zip(steps.step[rows].tolist(), stretches, strict=True))


def side(context: Context) -> list[Component]:
    """The findings of each run: each opens in place, and leads to what it is about."""
    parts: list[Component] = []
    for run in context.runs:
        content = content_of(run.report)
        name = f" of {run.id}" if len(context.runs) > 1 else ""
        parts += [html.H2(f"Findings{name}"), *so_far(run)]
        if content.no_findings is not None:
            parts.append(html.P(content.no_findings, className="faint"))
        if run.report.findings:
            parts.append(html.P(PER_STEP, className="faint small"))
        parts += timeline_cards(context, run, content)
    return parts
