"""Ranks: who waits for whom, who is late, whose clock is off, step by step."""

from __future__ import annotations

from dash import dcc, html
from dash.development.base_component import Component

from fsdpdoctor.report.rows import waits_by_last
from fsdpdoctor.schema import Evidence
from fsdpdoctor_dashboard import figures
from fsdpdoctor_dashboard.library import OpenRun
from fsdpdoctor_dashboard.pages.parts import (
    Cell,
    Context,
    data_table,
    ns_words,
    number_cells,
    share_words,
    side_by_side,
)


def page(context: Context) -> Component:
    """Each run's ranks, two runs beside each other."""
    return html.Main(
        [
            html.H1("Ranks"),
            side_by_side(
                context,
                [
                    html.Div(_of(f"ranks-{at}", run, context.theme))
                    for at, run in enumerate(context.runs)
                ],
            ),
        ]
    )


def _of(name: str, run: OpenRun, theme: str) -> list[Component]:
    measures = run.measures
    parts: list[Component] = [_table(name, run)]
    steps = max((int(rank.judged.sum()) for rank in measures.ranks), default=0)
    if Evidence.RANKS in measures.evidence and steps:
        waits = {rank.rank: waits_by_last(measures, rank) for rank in measures.ranks}
        ranks = sorted(waits)
        parts += [
            html.H2("Who waits for whom"),
            dcc.Graph(figure=figures.wait_matrix(ranks, waits, steps, theme)),
            html.H2("Who is last"),
            dcc.Graph(figure=figures.last_arrivals(run.report, theme)),
        ]
    else:
        parts.append(
            html.P(
                "Who waits for whom is not measured: it takes at least two ranks "
                "whose collectives can be matched.",
                className="faint",
            )
        )
    parts += [
        html.H2("Step time"),
        dcc.Graph(figure=figures.step_heat(measures, theme, exposed=False)),
    ]
    if measures.stalls_known:
        parts += [
            html.H2("Exposed time"),
            dcc.Graph(figure=figures.step_heat(measures, theme, exposed=True)),
        ]
    return parts


def _table(name: str, run: OpenRun) -> Component:
    ranks = run.report.ranks
    exposed = [row.exposed_ns_per_step for row in ranks]
    waits = [row.wait_ns_per_step for row in ranks]
    columns = [
        [Cell(words=f"rank {row.rank}", value=row.rank) for row in ranks],
        [Cell(words=row.host or "-", kind="words") for row in ranks],
        [Cell(words=ns_words(row.step_ns), value=row.step_ns) for row in ranks],
        number_cells(exposed, [ns_words(ns) for ns in exposed], "exposed"),
        number_cells(waits, [ns_words(ns) for ns in waits]),
        [
            Cell(words=share_words(row.overlap_share), value=row.overlap_share)
            for row in ranks
        ],
        [
            Cell(
                words="-" if row.last_arrivals is None else f"{row.last_arrivals:,}",
                value=row.last_arrivals,
            )
            for row in ranks
        ],
        [_clock(row.clock_offset_ns) for row in ranks],
        [_clock(row.clock_residual_ns) for row in ranks],
    ]
    heads = ["rank", "host", "step", "exposed", "waits for others", "overlap"]
    heads += ["times last", "clock offset", "clock residual"]
    return data_table(name, heads, list(zip(*columns, strict=True)))


def _clock(ns: int | None) -> Cell:
    return Cell(words=ns_words(ns), value=ns)
