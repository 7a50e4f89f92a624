"""Memory: which units are unsharded when, and what is allocated, over one step."""

from __future__ import annotations

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from fsdpdoctor.rank_measures import RankMeasures
from fsdpdoctor.renderers.words import unit_name
from fsdpdoctor.schema import UNKNOWN, Phase
from fsdpdoctor_dashboard import figures
from fsdpdoctor_dashboard.library import OpenRun
from fsdpdoctor_dashboard.pages.parts import (
    Cell,
    Context,
    byte_words,
    chooser,
    chosen,
    data_table,
    number_cells,
    side_by_side,
    table_tools,
)


def page(context: Context) -> Component:
    """One rank and step of each run, two runs beside each other."""
    sections = [
        html.Div(_of(context, f"memory-{at}", run))
        for at, run in enumerate(context.runs)
    ]
    return html.Main([html.H1("Memory"), side_by_side(context, sections)])


def _of(context: Context, name: str, run: OpenRun) -> list[Component]:
    ranks = {rank.rank: rank for rank in run.measures.ranks}
    rank = ranks[chosen(context, "rank", list(ranks))]
    steps = rank.judged_steps.tolist() or rank.steps.step.tolist()
    if not steps:
        return [html.P("No step was recorded.")]
    step = chosen(context, "step", steps)
    parts: list[Component] = [
        chooser(context, "memory", "rank", list(ranks), rank.rank),
        chooser(context, "memory", "step", steps, step),
    ]
    if (rank.memory_step == step).any():
        parts += [
            html.H2("Over the step"),
            dcc.Graph(figure=figures.memory_curves(rank, step, context.theme)),
        ]
    else:
        parts.append(html.P("Memory was not measured.", className="faint"))
    if (rank.windows.step == step).any():
        parts += [
            html.H2("Units unsharded"),
            dcc.Graph(figure=figures.windows(rank, step, context.theme)),
        ]
    else:
        parts.append(html.P("Unshard windows were not measured.", className="faint"))
    return [*parts, *_peaks(name, rank)]


def _peaks(name: str, rank: RankMeasures) -> list[Component]:
    """The most that was allocated while a unit ran, by phase, over judged steps."""
    times = rank.unit_times.rows(rank.in_judged(rank.unit_times.step))
    times = times.rows(times.peak_bytes != UNKNOWN)
    if not len(times):
        return [html.P("Peaks by unit were not measured.", className="faint")]
    units = np.unique(times.unit).tolist()
    columns = [
        [Cell(words=unit_name(rank.unit_name(u) or "?"), kind="words") for u in units]
    ]
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        peaks = []
        for unit in units:
            mine = (times.unit == unit) & (times.phase == phase)
            peaks.append(int(times.peak_bytes[mine].max()) if mine.any() else None)
        columns.append(number_cells(peaks, [byte_words(peak) for peak in peaks]))
    rows = list(zip(*columns, strict=True))
    return [
        html.H2("Peak while a unit ran"),
        table_tools(name, "units"),
        data_table(name, ["unit", "forward", "backward"], rows),
    ]
