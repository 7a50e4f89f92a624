"""Plans by what they take of memory and what they give of time, with the best line.

Colours: blue is worth it, grey is within the prediction's own error, and what is
not faster is hollow. The band is the error of the plans on the line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from textwrap import wrap
from typing import NamedTuple

import plotly.graph_objects as go

from fsdpdoctor.quantities import MS
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.renderers.palette import INKS, SERIES, series_colours
from fsdpdoctor.renderers.reading.unit_names import UnitNames
from fsdpdoctor.simulate.plans.predict import Prediction
from fsdpdoctor_dashboard.pages.pictures.figures import styled
from fsdpdoctor_dashboard.pages.plan_knobs import setting

MIB, GIB = 1 << 20, 1 << 30
NAME_CHARACTERS, NAME_LINES = 20, 3
"""Of a plan's name beside its point; the whole one is in its hover."""
NAME_HIGH = 0.4
"""Of the picture: names are further apart, whatever its width."""
KNEE_POINTS = 3
"""A line of fewer points has no bend."""


class Point(NamedTuple):
    """One plan, or the run as it was."""

    name: str
    cost: int  # bytes per rank beyond the run's own
    step_ns: int
    error_ns: int


def pareto(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats in time and memory at once, the smallest first."""
    kept: list[Point] = []
    for one in sorted(points, key=lambda p: (p.cost, p.step_ns)):
        if not kept or one.step_ns < kept[-1].step_ns:
            kept.append(one)
    return kept


def knee(line: Sequence[Point]) -> Point | None:
    """Where the line bends most: after it, memory buys little time.

    The point that is furthest below the straight line from the first to the last.
    """
    if len(line) < KNEE_POINTS:
        return None
    first, last = line[0], line[-1]
    wide, high = last.cost - first.cost, first.step_ns - last.step_ns

    def below(point: Point) -> float:
        along = (point.cost - first.cost) / wide
        return (first.step_ns - point.step_ns) / high - along

    found = max(line[1:-1], key=below)
    return found if below(found) > 0 else None


def front(
    plans: Mapping[str, tuple[Prediction, int]],
    measured_ns: int,
    theme: str,
    called: UnitNames,
) -> go.Figure:
    """Predicted step against bytes per rank; a click on a point sets the knobs, whose
    units are called so.
    """
    was = Point("as it was", 0, measured_ns, 0)
    points = {
        words: Point(words, cost, found.step_ns, found.error_ns)
        for words, (found, cost) in plans.items()
    }
    shown = [was, *points.values()]
    unit, name = _unit(shown)
    line = pareto(shown)
    figure = go.Figure()
    _band(figure, line, unit)
    for kind in KINDS:
        some = [(points[w], p) for w, (p, _) in plans.items() if kind_of(p) == kind]
        if some:
            _markers(figure, kind, some, unit, called)
    figure.add_scatter(
        x=[0],
        y=[measured_ns / MS],
        mode="markers",
        marker={
            "color": series_colours(theme)["sync"],
            "size": 12,
            "symbol": "diamond",
        },
        name="as it was",
        hovertemplate="as it was: %{y:.4g} ms<extra></extra>",
    )
    _names(figure, line, shown, theme)
    figure.update_xaxes(title=f"memory beyond the run's own, {name} per rank")
    figure.update_yaxes(title="predicted step, ms")
    return styled(figure, theme, 380, legend=True)


def _band(figure: go.Figure, line: Sequence[Point], unit: int) -> None:
    """The line, and how far its plans may be off."""
    x = [point.cost / unit for point in line]
    y = [point.step_ns / MS for point in line]
    off = [point.error_ns / MS for point in line]
    figure.add_scatter(
        x=[*x, *reversed(x)],
        y=[
            *(step + error for step, error in zip(y, off, strict=True)),
            *(s - e for s, e in zip(reversed(y), reversed(off), strict=True)),
        ],
        mode="lines",
        fill="toself",
        fillcolor=f"rgba({_rgb(SERIES['forward'])}, 0.12)",
        line={"width": 0},
        hoverinfo="skip",
        name="error of the best line",
    )
    figure.add_scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": SERIES["forward"], "width": 1.5},
        hoverinfo="skip",
        name="best for its memory",
    )


def _rgb(colour: str) -> str:
    return ", ".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))


def kind_of(found: Prediction) -> str:
    """Under which words a plan is drawn."""
    if found.gain_ns <= 0:
        return "not faster"
    return "worth it" if found.gain_ns > found.error_ns else "within its error"


KINDS = {
    "worth it": (SERIES["forward"], "circle"),
    "within its error": (SERIES["kernel"], "circle"),
    "not faster": (SERIES["kernel"], "circle-open"),
}
"""Colours and shapes of points."""


def _markers(
    figure: go.Figure,
    kind: str,
    plans: Sequence[tuple[Point, Prediction]],
    unit: int,
    called: UnitNames,
) -> None:
    colour, symbol = KINDS[kind]
    figure.add_scatter(
        x=[point.cost / unit for point, _ in plans],
        y=[point.step_ns / MS for point, _ in plans],
        mode="markers",
        marker={"color": colour, "size": 10, "symbol": symbol},
        text=[visible(point.name) for point, _ in plans],
        customdata=[
            [setting(found.plan, called), point.error_ns / MS, found.gain_ns / MS]
            for point, found in plans
        ],
        hovertemplate="%{text}<br>%{y:.4g} ms +- %{customdata[1]:.3g}, gain "
        "%{customdata[2]:.3g} ms, %{x:+.4g}<extra>click: try it</extra>",
        name=kind,
    )


def _name(name: str) -> str:
    """A plan's name in a few short lines, which a telephone has room for."""
    lines = wrap(
        visible(name), NAME_CHARACTERS, max_lines=NAME_LINES, placeholder=" ..."
    )
    return "<br>".join(map(escape, lines))


def named(line: Sequence[Point], points: Sequence[Point]) -> list[Point]:
    """Which points have room for their names: the knee first, then the fastest.

    The others have theirs in the hover, and in the rows below.
    """
    bend = knee(line)
    high = max(p.step_ns for p in points) - min(p.step_ns for p in points) or 1
    wanted = [p for p in line if p.error_ns]  # the run as it was has its own mark
    wanted.sort(key=lambda p: (p is not bend, p.step_ns))
    kept: list[Point] = []
    for one in wanted:
        apart = (abs(one.step_ns - other.step_ns) / high for other in kept)
        if all(part > NAME_HIGH for part in apart):
            kept.append(one)
    return kept


def _names(
    figure: go.Figure, line: Sequence[Point], shown: Sequence[Point], theme: str
) -> None:
    bend = knee(line)
    ink = INKS["dark" if theme == "dark" else "light"]
    unit, _ = _unit(shown)
    middle = (min(p.cost for p in shown) + max(p.cost for p in shown)) / 2
    for point in named(line, shown):
        words = _name(point.name)
        left = point.cost > middle  # towards the middle there is room
        figure.add_annotation(
            x=point.cost / unit,
            y=point.step_ns / MS,
            text=f"<b>knee: {words}</b>" if point is bend else words,
            showarrow=True,
            arrowhead=0,
            arrowcolor=ink["faint"],
            arrowwidth=1,
            ax=-24 if left else 24,
            ay=-34,
            xanchor="right" if left else "left",
            align="left",
            font={"size": 11, "color": ink["text"] if point is bend else ink["faint"]},
        )


def _unit(points: Sequence[Point]) -> tuple[int, str]:
    largest = max(abs(point.cost) for point in points)
    return (GIB, "GiB") if largest >= GIB else (MIB, "MiB")
