"""Measures and reports -> plotly figures. Pure functions.

Colours are the timeline's, vermillion is for exposed time alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from fsdpdoctor.intervals import Int64s
from fsdpdoctor.quantities import MS, ms
from fsdpdoctor.renderers.formatting import ranges, visible
from fsdpdoctor.renderers.palette import INKS, SERIES
from fsdpdoctor.report.value import RankRow, Report
from fsdpdoctor_dashboard.data.kept.rank_sketches import (
    NOT_JUDGED,
    RankSteps,
    Waits,
)

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
MOST_BARS = 128
"""Ranks with a bar each, of three pixels; of more, SHOWN_BARS stand for all."""
SHOWN_BARS = 64
MOST_COLUMNS = 512
"""Ranks side by side in a heat map: on a screen each then has a pixel or two. Of more,
neighbours share a column, which shows the one of them that is furthest off: from the
median, or from no exposed time.
"""
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


def wait_matrix(waits: Waits, steps: int, theme: str) -> go.Figure:
    """Who waited for whom: row waits, column is the last to arrive. Of more ranks than
    have a line each, a line is the mean of some that stand beside each other.
    """
    alone = waits.together == 1
    firsts = range(0, len(waits.ranks), waits.together)
    lines = [waits.ranks[at : at + waits.together] for at in firsts]
    values = [
        [ns / len(line) / steps / MS for ns in row]
        for line, row in zip(lines, waits.ns, strict=True)
    ]
    few = len(waits.ranks) <= WRITTEN_RANKS
    mean = "" if alone else " on average"
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=[str(rank) for rank in waits.last],
            y=[ranges(line) for line in lines],
            zmin=0,
            colorscale=_scale(theme),
            colorbar=_bar("ms per step"),
            text=_written(values) if few else None,
            texttemplate="%{text}" if few else None,
            textfont=_ink(theme),
            xgap=1 if few else 0,
            ygap=1 if few else 0,
            hovertemplate=f"rank %{{y}} waits %{{z:.3g}} ms per step{mean} "
            "for rank %{x}<extra></extra>",
        )
    )
    figure.update_xaxes(
        title="last to arrive: rank", type="category", **every_rank(len(waits.last))
    )
    figure.update_yaxes(
        title="waiting rank" if alone else "waiting ranks",
        type="category",
        autorange="reversed",
        automargin=not alone,
        **every_rank(len(lines), RANK_LINES),
    )
    height = max(220, min(MATRIX_HEIGHT, 90 + 34 * len(lines)))
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
    ranks = shown_bars(report)
    names = [str(row.rank) for row in ranks]
    caused = [(row.wait_caused_ns_per_step or 0) / MS for row in ranks]
    times = [row.last_arrivals or 0 for row in ranks]
    often = _rank_bars(names, times, "times last to arrive", theme)
    if max(times, default=0) < FEW_TIMES:
        often.update_yaxes(dtick=1)
    return often, _rank_bars(names, caused, "waiting caused, ms per step", theme)


def shown_bars(report: Report) -> list[RankRow]:
    """The ranks that have a bar: of more than have room, those that make the others
    wait most.
    """
    ranks = [row for row in report.ranks if row.last_arrivals is not None]
    if len(ranks) <= MOST_BARS:
        return ranks
    worst = sorted(ranks, key=lambda row: -(row.wait_caused_ns_per_step or 0))
    return sorted(worst[:SHOWN_BARS], key=lambda row: row.rank)


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


def largest_deviation(steps: RankSteps) -> float:
    """Of all judged steps from the median one, in percent of it."""
    taken = _known(steps.took_ns)
    if not len(taken):
        return 0.0
    return float(np.abs(100 * (taken / steps.middle_ns - 1)).max())


def longest_exposed_ms(steps: RankSteps) -> float:
    """What compute waited for in the worst judged step of all ranks."""
    return float(_known(steps.exposed_ns).max(initial=0)) / MS


def _known(rows: Sequence[Sequence[int]]) -> Int64s:
    values = np.array(rows, dtype=np.int64).ravel()
    found: Int64s = values[values != NOT_JUDGED]
    return found


class _Cells(NamedTuple):
    """A heat map's columns: a rank each, or the one of some that is furthest off."""

    ms: npt.NDArray[np.float64]  # [columns, steps], NaN where none was judged
    ranks: npt.NDArray[np.int64]  # [columns, steps] whose it is
    first: list[int]  # the first of each column's, in `RankSteps.ranks`


def ranks_together(steps: RankSteps) -> int:
    """How many ranks share a column."""
    return max(1, -(-len(steps.ranks) // MOST_COLUMNS))


def _cells(steps: RankSteps, *, exposed: bool) -> _Cells:
    ns = np.array(steps.exposed_ns if exposed else steps.took_ns, dtype=np.int64)
    ns = ns.reshape(len(steps.ranks), len(steps.steps))
    values = np.where(ns == NOT_JUDGED, np.nan, ns / MS)
    numbers = np.array(steps.ranks, dtype=np.int64)
    together = ranks_together(steps)
    middle = 0.0 if exposed else steps.middle_ns / MS
    first = list(range(0, len(numbers), together))
    rows, whose = [], []
    for at in first:
        here = values[at : at + together]
        off = np.nan_to_num(np.abs(here - middle), nan=-1.0)
        furthest = off.argmax(axis=0)
        rows.append(here[furthest, np.arange(here.shape[1])])
        whose.append(numbers[at + furthest])
    return _Cells(np.array(rows), np.array(whose), first)


def step_heat(
    known: RankSteps, theme: str, *, exposed: bool, span: float = 0.0
) -> go.Figure:
    """Rank by judged step: how long it took, or how long compute stood still in it.

    Steps that were set aside are left out: one that compiles would take all colours.
    Colours end at `span` at least: two runs beside each other have one scale.
    """
    cells = _cells(known, exposed=exposed)
    values = cells.ms
    words = "stood still for" if exposed else "took"
    # Many ranks stand beside each other: their few steps are then few rows.
    across = len(cells.first) > WRITTEN_RANKS
    ranks, names = _rank_names(known, cells.first), [str(step) for step in known.steps]
    rows = len(names) if across else len(cells.first)
    height = max(170, min(640, 90 + 22 * rows))
    few = not across and len(names) <= WRITTEN_STEPS
    few = few and (height - 90) / max(rows, 1) >= WRITTEN_HEIGHT
    shown = values.T if across else values
    about = "rank %{x}, step %{y}" if across else "rank %{y}, step %{x}"
    said: object = shown
    if len(cells.first) < len(known.ranks):  # which of some ranks it is, is said
        about = f"rank %{{customdata[1]:d}}, step %{{{'y' if across else 'x'}}}"
        said = np.dstack([shown, cells.ranks.T if across else cells.ranks])
    taken = "%{customdata[0]:.4g}" if said is not shown else "%{customdata:.4g}"
    figure = go.Figure(
        go.Heatmap(
            **_coloured(shown, theme, (known.middle_ns / MS, span), exposed=exposed),
            customdata=said,
            x=ranks if across else names,
            y=names if across else ranks,
            text=_written(values.tolist()) if few else None,
            texttemplate="%{text}" if few else None,
            textfont=_ink(theme),
            xgap=1 if few else 0,
            ygap=1 if few else 0,
            hovertemplate=f"{about} {words} {taken} ms<extra></extra>",
        )
    )
    _step_axes(figure, known, len(cells.first), across=across)
    return _with_bar(styled(figure, theme, height))


def _step_axes(
    figure: go.Figure, known: RankSteps, columns: int, *, across: bool
) -> None:
    """The axis of ranks, under their hosts where there are several, and of steps."""
    several = len(set(known.hosts)) > 1
    kind = "multicategory" if several else "category"
    if across:
        figure.update_xaxes(title="rank", type=kind, **every_rank(columns))
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


def _rank_names(known: RankSteps, first: Sequence[int]) -> list[str] | list[list[str]]:
    """Ranks, under their hosts where there are several; of some the first."""
    ranks = [str(known.ranks[at]) for at in first]
    hosts = [visible(known.hosts[at] or "?") for at in first]
    return [hosts, ranks] if len(set(known.hosts)) > 1 else ranks


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
