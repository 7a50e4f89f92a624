"""Ranks: who waits for whom, who is late, whose clock is off, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.quantities import ms
from fsdpdoctor.renderers.formatting import ranges, visible
from fsdpdoctor.renderers.report_view import PART_WORDS
from fsdpdoctor.renderers.tables import Cell
from fsdpdoctor.report.rank_lateness import Lateness
from fsdpdoctor.report.value import Health, RankRow
from fsdpdoctor_dashboard.data.kept.rank_sketches import RankSteps, Waits
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
    judged, theme = run.sketches.steps, context.theme
    if not judged.steps:
        return [*_ranks(name, run, context.runs), html.P("No whole step was recorded.")]
    every = [each.sketches.steps for each in context.runs]
    longest = max(figures.longest_exposed_ms(steps) for steps in every)
    off = max(figures.largest_deviation(steps) for steps in every)
    return [
        *_late(name, run),
        html.H2("Step time, against the median step"),
        _set_aside(run.report.health),
        *_columns_of_many(judged, "is furthest off"),
        plot(figures.step_heat(judged, theme, exposed=False, span=off)),
        html.H2("Exposed time"),
        html.P("Of each judged step, by rank, in ms.", className="faint"),
        *_columns_of_many(judged, "stood still longest"),
        plot(figures.step_heat(judged, theme, exposed=True, span=longest))
        if run.measures.stalls_known
        else html.P("Cannot tell: the source shows no stalls.", className="faint"),
        *_waits(run, theme),
        *_ranks(name, run, context.runs),
    ]


MOST_NAMED = 16
"""Ranks up to which the table of all is not folded."""

MOST_ROWS = 512
"""Ranks up to which the table has all: a browser takes a second for 5,000 cells. All of
any number are in `fsdpdoctor analyze --json`."""

SHOWN_ROWS = 128

MOST_LATE = 8
"""Ranks that are listed as late."""

LATE_SHARE = 0.005
"""Of the step: who makes the others wait less than that is not late."""


def _late(name: str, run: OpenRun) -> list[Component]:
    """Who makes the others wait, the worst first, and what it does more of."""
    step_ns = run.report.step_time_ns.median or 0
    found = run.sketches.late
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
    if len(ranks) <= MOST_ROWS:
        summary = f"All {len(ranks)} ranks"
    else:
        summary = (
            f"{SHOWN_ROWS} of {len(ranks):,} ranks: those that others wait for most"
        )
    table = [table_tools(name, "ranks"), per_step, _table(name, run, runs)]
    return [html.Details([html.Summary(summary), *table])]


def shown_rows(rows: Sequence[RankRow]) -> Sequence[RankRow]:
    """The ranks that the table of all has a row for."""
    if len(rows) <= MOST_ROWS:
        return rows
    worst = sorted(rows, key=lambda row: -(row.wait_caused_ns_per_step or 0))
    return sorted(worst[:SHOWN_ROWS], key=lambda row: row.rank)


def _waits(run: OpenRun, theme: str) -> list[Component]:
    waits = run.sketches.waits
    if waits is None:
        return [
            html.H2("Who waits for whom"),
            html.P(
                "Cannot tell: it takes at least two ranks whose collectives can be "
                "matched.",
                className="faint",
            ),
        ]
    steps = run.sketches.steps.most_judged
    return [
        html.H2("Who waits for whom"),
        *_of_many(waits),
        plot(figures.wait_matrix(waits, steps, theme)),
        html.H2("Who is last"),
        *_bars_of_many(run),
        html.Div(
            [plot(bars) for bars in figures.last_arrivals(run.report, theme)],
            className="pair",
        ),
    ]


def _of_many(waits: Waits) -> list[Component]:
    """What the matrix shows, where that is not every rank."""
    if waits.together == 1:
        return []
    words = (
        f"A line is the mean of {waits.together} ranks. Columns are the "
        f"{len(waits.last)} of {len(waits.ranks):,} ranks that others wait for most."
    )
    return [html.P(words, className="faint")]


def _bars_of_many(run: OpenRun) -> list[Component]:
    shown = figures.shown_bars(run.report)
    if len(shown) == len(run.report.ranks):
        return []
    words = f"The {len(shown)} of {len(run.report.ranks):,} ranks that others wait "
    return [html.P(f"{words}for most.", className="faint")]


def _columns_of_many(steps: RankSteps, which: str) -> list[Component]:
    """What a column of the heat map is, where that is not a rank."""
    together = figures.ranks_together(steps)
    if together == 1:
        return []
    words = f"A column is {together} ranks, of which it shows the one that {which}."
    return [html.P(words, className="faint")]


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
    ranks = shown_rows(run.report.ranks)
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
