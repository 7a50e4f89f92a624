"""Memory: which units are unsharded when, and what is allocated, over one step."""

from __future__ import annotations

import numpy as np
from dash import html
from dash.development.base_component import Component

from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.renderers.formatting import unit_name
from fsdpdoctor.renderers.tables import Cell
from fsdpdoctor.schema import UNKNOWN, Phase
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages import figures
from fsdpdoctor_dashboard.pages.components import (
    Context,
    byte_words,
    chooser,
    chosen,
    columns,
    data_table,
    number_cells,
    plot,
    run_page,
    table_tools,
)


def page(context: Context) -> Component:
    """One rank and step of each run."""
    return run_page(context, "Memory", lambda name, run: _of(context, name, run))


def _of(context: Context, name: str, run: OpenRun) -> list[Component]:
    ranks = {rank.rank: rank for rank in run.measures.ranks}
    rank = ranks[chosen(context, "rank", list(ranks))]
    steps = rank.judged_steps.tolist() or rank.steps.step.tolist()
    if not steps:
        return [html.P("No whole step was recorded.")]
    step = chosen(context, "step", steps)
    return [
        chooser(context, "memory", "rank", list(ranks), rank.rank),
        chooser(context, "memory", "step", steps, step),
        *_curves(rank, step, context.theme),
        html.H2("Units unsharded"),
        plot(figures.windows(rank, step, context.theme))
        if (rank.windows.step == step).any()
        else html.P(
            "Cannot tell: the source does not show when units are unsharded.",
            className="faint",
        ),
        html.H2("Peak while a unit ran"),
        *_peaks(name, rank),
    ]


def _curves(rank: RankMeasures, step: int, theme: str) -> list[Component]:
    """The device's memory; the whole process's apart, whose scale is another."""
    names = figures.curves_of(rank, step)
    if not names:
        return [
            html.H2("Over the step"),
            html.P(
                "Cannot tell: the source holds no memory samples of this step.",
                className="faint",
            ),
        ]
    parts: list[Component] = []
    for shown in (
        [name for name in names if name != "rss_bytes"],
        [name for name in names if name == "rss_bytes"],
    ):
        if not shown:
            continue
        what = figures.CURVES[shown[0]].words if len(shown) == 1 else "memory"
        figure = figures.memory_curves(rank, step, shown, theme)
        parts += [html.H2(f"Over the step: {what}"), plot(figure)]
    if "allocated_bytes" not in names:
        parts.append(
            html.P(
                "Allocated and reserved memory: cannot tell, the CPU has no "
                "allocator statistics."
                if rank.header.device == "cpu"
                else "Allocated and reserved memory: cannot tell, the source has no "
                "allocator statistics.",
                className="faint",
            )
        )
    return parts


def _peaks(name: str, rank: RankMeasures) -> list[Component]:
    """The most that was allocated while a unit ran, by phase, over judged steps."""
    times = rank.unit_times.rows(rank.in_judged(rank.unit_times.step))
    times = times.rows(times.peak_bytes != UNKNOWN)
    if not len(times):
        return [
            html.P(
                "Cannot tell: peaks by unit take the allocator's statistics.",
                className="faint",
            )
        ]
    units = np.unique(times.unit).tolist()
    parts = [[Cell(text=unit_name(rank.unit_name(u) or "?")) for u in units]]
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        peaks = []
        for unit in units:
            mine = (times.unit == unit) & (times.phase == phase)
            peaks.append(int(times.peak_bytes[mine].max()) if mine.any() else None)
        parts.append(number_cells(peaks, [byte_words(peak) for peak in peaks]))
    rows = zip(*parts, strict=True)
    phases = ("forward", "backward")
    counted = dict.fromkeys(phases, "bytes")
    heads = columns("unit", *phases, left=("unit",), units=counted)
    return [table_tools(name, "units"), data_table(name, heads, rows)]
