"""Measures and reports -> plotly figures. Pure functions.

Colours are the timeline's, vermillion is for exposed time alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.quantities import MS, ms
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.renderers.palette import INKS, SERIES
from fsdpdoctor.report.value import Report

CLEAR = "rgba(0,0,0,0)"
WRITTEN_RANKS = 16
"""Up to so many ranks the matrix has room for its numbers."""
WRITTEN_STEPS = 20
WRITTEN_HEIGHT = 16
"""Cells of a heat map have room for their numbers: so many beside each other on half a
window, each so many pixels high."""
LEAST_SPAN = 0.05
"""Of a step: what all colours of a heat map stand for at least."""
MOST_STEP_TICKS = 25
RANK_TICKS = 8
"""Ranks that an axis names from left to right: so many fit side by side on a phone."""
RANK_LINES = 16
"""And from top to bottom."""
MATRIX_HEIGHT = 460
"""Of a matrix of ranks at most: with what is above and below it fits a screen."""
FEW_TIMES = 6
HEAD_ROOM = 1.06
"""Of an axis's highest value: what the axis ends at. Said, and not left to plotly, so
that a still picture has the same."""
BAR_MARGIN = 110
"""At the right of a heat map, for its colour bar: plotly then adds none of its own."""
"""So few can be counted: the axis then has whole numbers only."""


def styled(
    figure: go.Figure, theme: str, height: int, *, legend: bool = False
) -> go.Figure:
    """A figure in the app's looks; a legend stands above it, in a place of its own."""
    figure.update_layout(
        template=_looks("dark" if theme == "dark" else "light"),
        height=height,
        margin={"l": 70, "r": 20, "t": 48 if legend else 10, "b": 50},
        showlegend=legend,
    )
    return figure


@cache
def _looks(theme: str) -> go.layout.Template:
    """What all figures have in common, made once: plotly takes longer to check each
    property of each axis than to draw it.
    """
    ink = INKS[theme]
    axis = {
        "gridcolor": ink["grid"],
        "zerolinecolor": ink["grid"],
        # No automargin: a figure is drawn twice for it. Axes with names ask for it.
        "title": {"standoff": 8},
        # Not to be seen: they keep the words of both axes apart in the corner.
        "ticks": "outside",
        "ticklen": 5,
        "tickcolor": CLEAR,
    }
    layout = {
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {
            "family": "system-ui, sans-serif",
            "size": 12,
            "color": ink["text"],
        },
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "modebar": {
            "bgcolor": CLEAR,
            "color": ink["line"],
            "activecolor": ink["faint"],
        },
        "hoverlabel": {"namelength": -1},
        "xaxis": axis,
        "yaxis": axis,
    }
    return go.layout.Template(layout=layout)


def from_nought(most: float) -> list[float]:
    """An axis from 0 to a little above the highest value."""
    return [0.0, HEAD_ROOM * most if most > 0 else 1.0]


def name_room(names: Iterable[str]) -> int:
    """The margin for an axis's names."""
    return max(70, 12 + 7 * max(map(len, names), default=0))


def wait_matrix(
    ranks: Sequence[int], waits: Mapping[int, Mapping[int, int]], steps: int, theme: str
) -> go.Figure:
    """Who waited for whom: row waits, column is the last to arrive."""
    values = [
        [waits[rank].get(other, 0) / steps / MS for other in ranks] for rank in ranks
    ]
    names = [str(rank) for rank in ranks]
    few = len(ranks) <= WRITTEN_RANKS
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=names,
            y=names,
            zmin=0,
            colorscale=_scale(theme),
            colorbar=_bar("ms per step"),
            text=_written(values) if few else None,
            texttemplate="%{text}" if few else None,
            textfont=_ink(theme),
            xgap=1 if few else 0,
            ygap=1 if few else 0,
            hovertemplate="rank %{y} waits %{z:.3g} ms per step for rank %{x}"
            "<extra></extra>",
        )
    )
    figure.update_xaxes(
        title="last to arrive: rank", type="category", **every_rank(len(ranks))
    )
    figure.update_yaxes(
        title="waiting rank",
        type="category",
        autorange="reversed",
        **every_rank(len(ranks), RANK_LINES),
    )
    height = max(220, min(MATRIX_HEIGHT, 90 + 34 * len(ranks)))
    return _with_bar(styled(figure, theme, height))


def _with_bar(figure: go.Figure) -> go.Figure:
    return figure.update_layout(margin_r=BAR_MARGIN)


def _written(values: Sequence[Sequence[float]]) -> list[list[str]]:
    """Milliseconds as they stand in tables, in cells that need not say the unit."""
    return [
        ["" if v != v else ms(v * MS).removesuffix(" ms") for v in row]
        for row in values
    ]


def _bar(title: str) -> dict[str, object]:
    """A colour bar as high as its figure."""
    return {"title": {"text": title, "side": "right"}, "thickness": 12, "len": 1}


def _scale(theme: str) -> list[list[object]]:
    """One hue, readable by every eye and in print. It ends where the numbers in the
    cells, which have one colour, can still be read.
    """
    if theme == "dark":
        return [[0, "#10161d"], [1, "#2f7cb3"]]
    return [[0, "#f4f8fb"], [1, "#5aa2d6"]]


def _ink(theme: str) -> dict[str, object]:
    return {"color": "#ffffff" if theme == "dark" else "#1f2328", "size": 12}


def last_arrivals(report: Report, theme: str) -> tuple[go.Figure, go.Figure]:
    """How often each rank was the last, and how much waiting that caused."""
    ranks = [row for row in report.ranks if row.last_arrivals is not None]
    names = [str(row.rank) for row in ranks]
    caused = [(row.wait_caused_ns_per_step or 0) / MS for row in ranks]
    times = [row.last_arrivals or 0 for row in ranks]
    often = _rank_bars(names, times, "times last to arrive", theme)
    if max(times, default=0) < FEW_TIMES:
        often.update_yaxes(dtick=1)
    return often, _rank_bars(names, caused, "waiting caused, ms per step", theme)


def _rank_bars(
    names: Sequence[str], values: Sequence[float], title: str, theme: str
) -> go.Figure:
    figure = go.Figure(
        go.Bar(
            x=names,
            y=values,
            marker={"color": SERIES["forward"]},
            hovertemplate=f"rank %{{x}}: %{{y:.4g}} {title}<extra></extra>",
        )
    )
    figure.update_yaxes(title=title, range=from_nought(max(values, default=0)))
    figure.update_xaxes(title="rank", type="category", **every_rank(len(names)))
    return styled(figure, theme, 260)


def largest_deviation(measures: Measures) -> float:
    """Of all judged steps from the median one, in percent of it."""
    middle = _middle_ns(measures)
    taken = _judged_ns(measures)
    return float(np.abs(100 * (taken / middle - 1)).max()) if len(taken) else 0.0


def longest_exposed_ms(measures: Measures) -> float:
    """What compute waited for in the worst judged step of all ranks."""
    found = [_exposed_by_step(rank)[rank.judged] for rank in measures.ranks]
    return float(max((ns.max() for ns in found if len(ns)), default=0)) / MS


def _hosts_together(measures: Measures) -> list[RankMeasures]:
    """Ranks of one host beside each other, in the order of their first ranks."""
    first: dict[str | None, int] = {}
    for rank in measures.ranks:
        first.setdefault(rank.header.host, rank.rank)
    return sorted(measures.ranks, key=lambda r: (first[r.header.host], r.rank))


def step_heat(
    measures: Measures, theme: str, *, exposed: bool, span: float = 0.0
) -> go.Figure:
    """Rank by judged step: how long it took, or how long compute stood still in it.

    Steps that were set aside are left out: one that compiles would take all colours.
    Colours end at `span` at least: two runs beside each other have one scale.
    """
    ordered = _hosts_together(measures)
    steps = sorted({int(s) for rank in measures.ranks for s in rank.judged_steps})
    place = {step: at for at, step in enumerate(steps)}
    values = np.full((len(ordered), len(steps)), np.nan)
    for at, rank in enumerate(ordered):
        ns = _exposed_by_step(rank) if exposed else rank.steps.duration_ns
        columns = [place[int(step)] for step in rank.steps.step[rank.judged]]
        values[at, columns] = ns[rank.judged] / MS
    words = "stood still for" if exposed else "took"
    # Many ranks stand beside each other: their few steps are then few rows.
    across = len(ordered) > WRITTEN_RANKS
    ranks, names = _rank_names(ordered), [str(step) for step in steps]
    rows = len(steps) if across else len(ordered)
    height = max(170, min(640, 90 + 22 * rows))
    few = not across and len(steps) <= WRITTEN_STEPS
    few = few and (height - 90) / max(rows, 1) >= WRITTEN_HEIGHT
    shown = values.T if across else values
    about = "rank %{x}, step %{y}" if across else "rank %{y}, step %{x}"
    figure = go.Figure(
        go.Heatmap(
            **_coloured(
                shown, theme, (_middle_ns(measures) / MS, span), exposed=exposed
            ),
            customdata=shown,
            x=ranks if across else names,
            y=names if across else ranks,
            text=_written(values.tolist()) if few else None,
            texttemplate="%{text}" if few else None,
            textfont=_ink(theme),
            xgap=1 if few else 0,
            ygap=1 if few else 0,
            hovertemplate=f"{about} {words} %{{customdata:.4g}} ms<extra></extra>",
        )
    )
    _step_axes(figure, ordered, across=across)
    return _with_bar(styled(figure, theme, height))


def _step_axes(
    figure: go.Figure, ordered: Sequence[RankMeasures], *, across: bool
) -> None:
    """The axis of ranks, under their hosts where there are several, and of steps."""
    several = len({rank.header.host for rank in ordered}) > 1
    kind = "multicategory" if several else "category"
    if across:
        figure.update_xaxes(title="rank", type=kind, **every_rank(len(ordered)))
        figure.update_yaxes(title="step", type="category", autorange="reversed")
        return
    figure.update_xaxes(title="step", type="category", nticks=MOST_STEP_TICKS)
    figure.update_yaxes(
        title="rank", type=kind, autorange="reversed", automargin=several
    )


def every_rank(count: int, room: int = RANK_TICKS) -> dict[str, object]:
    """Which ranks an axis names: all, or every second, fourth, ..."""
    every = 1
    while count / every > room:
        every *= 2
    return {"dtick": every, "tickangle": 0}


def _rank_names(ordered: Sequence[RankMeasures]) -> list[str] | list[list[str]]:
    """Ranks, under their hosts where there are several."""
    ranks = [str(rank.rank) for rank in ordered]
    hosts = [visible(rank.header.host or "?") for rank in ordered]
    return [hosts, ranks] if len(set(hosts)) > 1 else ranks


def _judged_ns(measures: Measures) -> Int64s:
    taken = [rank.steps.duration_ns[rank.judged] for rank in measures.ranks]
    return np.concatenate(taken)


def _middle_ns(measures: Measures) -> float:
    """The median judged step of all ranks."""
    return float(np.median(_judged_ns(measures)))


def _coloured(
    values: npt.NDArray[np.float64],
    theme: str,
    scale: tuple[float, float],
    *,
    exposed: bool,
) -> dict[str, object]:
    """What cells are coloured by. Steps: how far from the median, and exposed time: how
    much of a step; never less than `LEAST_SPAN`, or noise would have all colours.
    """
    middle, span = scale
    most = float(np.nanmax(np.abs(values), initial=0.0))
    if exposed:
        top = max(most, span, LEAST_SPAN * middle)
        return {
            "z": values,
            "zmin": 0,
            "zmax": top,
            "colorscale": _scale(theme),
            "colorbar": _bar("ms"),
        }
    off = 100 * (values / middle - 1)
    most = float(np.nanmax(np.abs(off), initial=0.0))
    span = max(most, span, 100 * LEAST_SPAN)
    return {
        "z": off,
        "zmin": -span,
        "zmax": span,
        "colorscale": _two_sided(theme),
        "colorbar": _bar("% off the median"),
    }


def _two_sided(theme: str) -> list[list[object]]:
    """Two hues about the ground's own colour, which is the median."""
    if theme == "dark":
        return [[0, "#2f7cb3"], [0.5, "#10161d"], [1, "#8f6320"]]
    return [[0, "#5aa2d6"], [0.5, "#f4f8fb"], [1, "#d9a441"]]


def _exposed_by_step(rank: RankMeasures) -> Int64s:
    stalls = rank.stalls
    order = np.argsort(rank.steps.step)
    at = order[np.searchsorted(rank.steps.step[order], stalls.step)]
    totals = np.zeros(len(rank.steps), dtype=np.int64)
    np.add.at(totals, at, stalls.duration_ns)
    return totals
