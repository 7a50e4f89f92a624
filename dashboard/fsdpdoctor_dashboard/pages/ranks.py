"""Ranks: who waits for whom, who is late, whose clock is off, step by step."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.renderers.formatting import ranges
from fsdpdoctor.renderers.tables import Cell
from fsdpdoctor.report.collectives_ranks import waits_by_last
from fsdpdoctor.report.value import Health
from fsdpdoctor.schema import Evidence
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages import figures
from fsdpdoctor_dashboard.pages.components import (
    Context,
    columns,
    data_table,
    ns_words,
    number_cells,
    plot,
    run_page,
    share_words,
)


def page(context: Context) -> Component:
    """Each run's ranks."""
    return run_page(context, "Ranks", lambda name, run: _of(context, name, run))


def _of(context: Context, name: str, run: OpenRun) -> list[Component]:
    measures, theme = run.measures, context.theme
    steps = max((int(rank.judged.sum()) for rank in measures.ranks), default=0)
    if not steps:
        return [_table(name, run), html.P("No whole step was recorded.")]
    return [
        _table(name, run),
        *_waits(run, steps, theme),
        html.H2("Step time"),
        _set_aside(run.report.health),
        plot(figures.step_heat(measures, theme, exposed=False)),
        html.H2("Exposed time"),
        plot(figures.step_heat(measures, theme, exposed=True))
        if measures.stalls_known
        else html.P("Cannot tell: the source shows no stalls.", className="faint"),
    ]


def _waits(run: OpenRun, steps: int, theme: str) -> list[Component]:
    measures = run.measures
    if Evidence.RANKS not in measures.evidence:
        return [
            html.H2("Who waits for whom"),
            html.P(
                "Cannot tell: it takes at least two ranks whose collectives can be "
                "matched.",
                className="faint",
            ),
        ]
    waits = {rank.rank: waits_by_last(measures, rank) for rank in measures.ranks}
    return [
        html.H2("Who waits for whom"),
        plot(figures.wait_matrix(sorted(waits), waits, steps, theme)),
        html.H2("Who is last"),
        plot(figures.last_arrivals(run.report, theme)),
    ]


def _set_aside(health: Health) -> Component:
    """Which steps the heat maps leave out."""
    parts = [
        f"{words} {ranges(steps)}"
        for words, steps in (
            ("warm-up", health.warm_up_steps),
            ("incomplete", health.incomplete_steps),
        )
        if steps
    ]
    left_out = f"; left out: {', '.join(parts)}" if parts else ""
    return html.P(f"Judged steps, by rank{left_out}.", className="faint")


def _table(name: str, run: OpenRun) -> Component:
    ranks = run.report.ranks
    exposed = [row.exposed_ns_per_step for row in ranks]
    waits = [row.wait_ns_per_step for row in ranks]
    parts = [
        [Cell(text=f"rank {row.rank}", value=row.rank) for row in ranks],
        [Cell(text=row.host or "-") for row in ranks],
        [Cell(text=ns_words(row.step_ns), value=row.step_ns) for row in ranks],
        number_cells(exposed, [ns_words(ns) for ns in exposed]),
        number_cells(waits, [ns_words(ns) for ns in waits]),
        [
            Cell(text=share_words(row.overlap_share), value=row.overlap_share)
            for row in ranks
        ],
        [
            Cell(
                text="-" if row.last_arrivals is None else f"{row.last_arrivals:,}",
                value=row.last_arrivals,
            )
            for row in ranks
        ],
        [_clock(row.clock_offset_ns) for row in ranks],
        [_clock(row.clock_residual_ns) for row in ranks],
    ]
    heads = ["rank", "host", "median step", "exposed per step", "waits per step"]
    heads += ["overlap"]
    heads += ["times last", "clock offset", "clock residual"]
    named = columns(*heads, left=("host",), exposed=("exposed per step",))
    return data_table(name, named, zip(*parts, strict=True))


def _clock(ns: int | None) -> Cell:
    return Cell(text=ns_words(ns), value=ns)
