"""Ranks: who waits for whom, who is late, whose clock is off, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.quantities import ms
from fsdpdoctor.renderers.formatting import ranges, visible
from fsdpdoctor.renderers.report_view import PART_WORDS
from fsdpdoctor.renderers.tables import Cell
from fsdpdoctor.report.collectives_ranks import waits_by_last
from fsdpdoctor.report.rank_lateness import Lateness, lateness
from fsdpdoctor.report.value import Health
from fsdpdoctor.schema import Evidence
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.components import (
    PER_STEP,
    Context,
    columns,
    data_table,
    ns_words,
    number_cells,
    plot,
    run_page,
    share_words,
    table_tools,
    with_terms,
)
from fsdpdoctor_dashboard.pages.pictures import figures


def page(context: Context) -> Component:
    """Each run's ranks."""
    return run_page(context, "Ranks", lambda name, run: _of(context, name, run))


def _of(context: Context, name: str, run: OpenRun) -> list[Component]:
    measures, theme = run.measures, context.theme
    steps = max((int(rank.judged.sum()) for rank in measures.ranks), default=0)
    if not steps:
        return [*_ranks(name, run, context.runs), html.P("No whole step was recorded.")]
    longest = max(figures.longest_exposed_ms(each.measures) for each in context.runs)
    off = max(figures.largest_deviation(each.measures) for each in context.runs)
    return [
        *_late(name, run),
        html.H2("Step time, against the median step"),
        _set_aside(run.report.health),
        plot(figures.step_heat(measures, theme, exposed=False, span=off)),
        html.H2("Exposed time"),
        html.P("Of each judged step, by rank, in ms.", className="faint"),
        plot(figures.step_heat(measures, theme, exposed=True, span=longest))
        if measures.stalls_known
        else html.P("Cannot tell: the source shows no stalls.", className="faint"),
        *_waits(run, steps, theme),
        *_ranks(name, run, context.runs),
    ]


MOST_NAMED = 16
"""Ranks up to which the table of all is not folded."""

MOST_LATE = 8
"""Ranks that are listed as late."""

LATE_SHARE = 0.005
"""Of the step: who makes the others wait less than that is not late."""


def _late(name: str, run: OpenRun) -> list[Component]:
    """Who makes the others wait, the worst first, and what it does more of."""
    step_ns = run.report.step_time_ns.median or 0
    found = lateness(run.measures, run.report.ranks)
    late = [one for one in found if (one.caused_ns or 0) > LATE_SHARE * step_ns]
    head = html.H2("Who is late, and why")
    if all(one.caused_ns is None for one in found):
        why = "ranks could not be matched" if len(found) > 1 else "there is one rank"
        return [head, html.P(f"Cannot tell: {why}.")]
    if not late:
        return [head, html.P("No rank makes the others wait.")]
    shown = late[:MOST_LATE]
    caused = [one.caused_ns or 0 for one in shown]
    rows = zip(
        [Cell(text=f"rank {one.rank}", value=one.rank) for one in shown],
        [Cell(text=visible(one.host or "-")) for one in shown],
        number_cells(caused, [ms(ns) for ns in caused]),
        [Cell(text=_reason(one)) for one in shown],
        strict=True,
    )
    heads = columns(
        *("rank", "host", MAKES_WAIT, REASON),
        left=("host", REASON),
        units={MAKES_WAIT: "ns"},
    )
    words = [html.P(f"And {len(late) - len(shown)} more.", className="faint")]
    return [
        head,
        html.P(with_terms(PER_STEP), className="faint"),
        data_table(f"{name}-late", heads, rows),
        *words[: len(late) > MOST_LATE],
    ]


MAKES_WAIT = "waiting caused per step, of all others"
REASON = "what it does more of than the others do on average"


def _reason(one: Lateness) -> str:
    if one.part is None:
        return "nothing that was measured"
    words = PART_WORDS.get(one.part, one.part.replace("_", " "))
    return f"{words}: {ms(one.excess_ns)} per step more"


def _ranks(name: str, run: OpenRun, runs: Sequence[OpenRun]) -> list[Component]:
    """All ranks' figures; of many ranks folded, so that what differs fits a screen."""
    ranks = run.report.ranks
    per_step = html.P(with_terms(PER_STEP), className="faint")
    if len(ranks) <= MOST_NAMED:
        return [html.H2("All ranks"), per_step, _table(name, run, runs)]
    summary = html.Summary(f"All {len(ranks)} ranks")
    table = [table_tools(name, "ranks"), per_step, _table(name, run, runs)]
    return [html.Details([summary, *table])]


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
        html.Div(
            [plot(bars) for bars in figures.last_arrivals(run.report, theme)],
            className="pair",
        ),
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
    words = f"Judged steps, by rank, in ms{left_out}."
    return html.P(words, className="faint")


def _table(name: str, run: OpenRun, runs: Sequence[OpenRun]) -> Component:
    ranks = run.report.ranks
    every = [row for each in runs for row in each.report.ranks]
    exposed = [row.exposed_ns_per_step for row in ranks]
    waits = [row.wait_ns_per_step for row in ranks]
    parts = [
        [Cell(text=f"rank {row.rank}", value=row.rank) for row in ranks],
        [Cell(text=row.host or "-") for row in ranks],
        [Cell(text=ns_words(row.step_ns), value=row.step_ns) for row in ranks],
        number_cells(
            exposed,
            [ns_words(ns) for ns in exposed],
            [row.exposed_ns_per_step for row in every],
        ),
        number_cells(
            waits,
            [ns_words(ns) for ns in waits],
            [row.wait_ns_per_step for row in every],
        ),
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
    times = ("median step", "exposed per step", "waits per step")
    clocks = ("clock offset", "clock residual")
    named = columns(
        *("rank", "host", *times, "overlap", "times last", *clocks),
        left=("host",),
        exposed=("exposed per step",),
        units=dict.fromkeys((*times, *clocks), "ns") | {"overlap": "share"},
    )
    return data_table(name, named, zip(*parts, strict=True))


def _clock(ns: int | None) -> Cell:
    return Cell(text=ns_words(ns), value=ns)
