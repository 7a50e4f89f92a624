"""A figure as a still picture: HTML and SVG that need no script.

[Note: Stills] To run plotly takes a browser longer than all else of a page, and a
picture needs none of it. So a page that is opened by its address comes with its charts
drawn here, from the same figures; plotly's take their places when they are there, at
the same places, and answer the mouse. What is not drawn here waits for plotly: the
still of such a figure is an empty place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from fsdpdoctor_dashboard.pages.pictures.still_axes import (
    Axis,
    NoStillError,
    Tick,
    axis_of,
    numbers,
)
from fsdpdoctor_dashboard.pages.pictures.still_marks import (
    Stacks,
    colour_at,
    heat_range,
    image,
    line,
    mark,
    marks_of,
    per_cent,
)

LETTER = 7.2
"""Pixels of a letter 12 pixels high, about."""
TICK_ROOM = 7
"""Pixels from an axis to its words."""
TITLE_ROOM = 8
"""From these to the title."""
BAR_STEPS = 64
"""Colours of a colour bar."""
BAR_LEFT = 34
"""Pixels from a heat map to its colour bar."""
BAR_PAD = 10
"""By which the bar is shorter at each end: plotly's."""


def still(figure: Any) -> str:
    """A figure's picture as HTML; without marks where it cannot be drawn here."""
    height = int(figure.layout.height)
    try:
        inside = "".join(_inside(figure))
    except NoStillError:
        inside = ""
    return f'<div class="still" style="height:{height}px">{inside}</div>'


def _inside(figure: Any) -> Iterator[str]:
    axes = _axes(figure)
    stacks = Stacks()
    for x, y in dict.fromkeys(_pair(trace) for trace in figure.data):
        mine = [trace for trace in figure.data if _pair(trace) == (x, y)]
        marks = [*_shapes(figure, y, axes[y])]
        for trace in mine:
            marks += marks_of(trace, axes[x], axes[y], stacks)
        heat = next((trace for trace in mine if trace.type == "heatmap"), None)
        grid = "" if heat is not None else "".join(_grid(axes[x], axes[y]))
        words = [*_words(axes[x], axes[y])]
        words += [*_notes(figure, y, axes[y])]
        beside = "" if heat is None else _colour_bar(figure, heat)
        drawn = f"<svg>{grid}{''.join(marks)}</svg>"
        place = _place(figure, axes[x], axes[y])
        yield f'<div class="area" style="{place}">{drawn}{"".join(words)}</div>{beside}'
    if figure.layout.showlegend:
        yield _legend(figure)


def _pair(trace: Any) -> tuple[str, str]:
    return trace.xaxis or "x", trace.yaxis or "y"


def _axes(figure: Any) -> dict[str, Axis]:
    """Every axis that a trace stands on, with all values that stand on it."""
    values: dict[str, list[Any]] = {}
    for trace in figure.data:
        for name, along in zip(_pair(trace), (trace.x, trace.y), strict=True):
            values.setdefault(name, []).extend(() if along is None else along)
    return {name: axis_of(figure, name, found) for name, found in values.items()}


def _place(figure: Any, x: Axis, y: Axis) -> str:
    """Where the area between two axes is, whatever the window's width."""
    sides = figure.layout.margin
    across, high = sides.l + sides.r, figure.layout.height - sides.t - sides.b
    left, right = x.domain
    low, top = y.domain
    return (
        f"left:calc({sides.l}px + {left:.4f}*(100% - {across}px));"
        f"width:calc({right - left:.4f}*(100% - {across}px));"
        f"top:{sides.t + (1 - top) * high:.1f}px;height:{(top - low) * high:.1f}px"
    )


def _grid(x: Axis, y: Axis) -> Iterator[str]:
    if not x.names:
        for tick in x.ticks():
            yield line(tick.share, 0, tick.share, 1, 'class="grid"')
    if not y.names:
        for tick in y.ticks():
            yield line(0, 1 - tick.share, 1, 1 - tick.share, 'class="grid"')


def _shapes(figure: Any, name: str, y: Axis) -> Iterator[str]:
    """Level lines, which go across."""
    for shape in figure.layout.shapes or ():
        if (shape.yref or "y") != name:
            continue
        top = 1 - y.share(shape.y0)
        dash = 'stroke-dasharray="9 9"' if shape.line.dash == "dash" else ""
        colour = escape(str(shape.line.color))
        looks = f'stroke="{colour}" stroke-width="{shape.line.width}" {dash}'
        yield line(0, top, 1, top, looks)


def _words(x: Axis, y: Axis) -> Iterator[str]:
    """Ticks and titles of both axes."""
    if x.shown:
        for tick in x.ticks():
            yield _span("x", f"left:{per_cent(tick.share)}", tick.words)
    if x.title:
        yield _span("title", "", x.title)
    ticks = y.ticks() if y.shown else []
    yield from _beside(ticks, y)
    if y.title:
        longest = max((len(tick.words) for tick in ticks), default=0)
        room = TICK_ROOM + LETTER * longest + TITLE_ROOM
        yield _span("up", f"right:calc(100% + {room:.0f}px)", y.title)


def _beside(ticks: Sequence[Tick], y: Axis) -> Iterator[str]:
    for tick in ticks:
        top = tick.share if y.reversed else 1 - tick.share
        yield _span("y", f"top:{per_cent(top)}", tick.words)


def _span(kind: str, style: str, words: str) -> str:
    return f'<span class="{kind}" style="{style}">{escape(words)}</span>'


def _notes(figure: Any, name: str, y: Axis) -> Iterator[str]:
    """Words at a level: at the left, or at the right end where the level line says."""
    for note in figure.layout.annotations or ():
        if (note.yref or "y") != name:
            continue
        at = y.share(note.y)
        side = "left:4px" if note.xanchor == "left" else "right:0"
        yield _span("note", f"{side};bottom:calc({per_cent(at)} + 2px)", note.text)


def _colour_bar(figure: Any, heat: Any) -> str:
    """What a heat map's colours stand for, at its right."""
    sides, high = figure.layout.margin, figure.layout.height
    low, most = heat_range(heat)
    stops = [(float(at), tuple(bytes.fromhex(c[1:]))) for at, c in heat.colorscale]
    across = (most - low) / BAR_STEPS
    cells = [
        [colour_at(stops, most - (at + 0.5) * across, low, most)]
        for at in range(BAR_STEPS)
    ]
    whole = high - sides.t - sides.b
    count = min(max(whole / 40, 4), 9) + 1
    words = "".join(
        _span("z", f"bottom:{per_cent((value - low) / (most - low))}", text)
        for value, text in numbers(low, most, count)
    )
    title = _span("down", "", heat.colorbar.title.text or "")
    place = (
        f"right:{sides.r - BAR_LEFT - heat.colorbar.thickness}px;"
        f"width:{heat.colorbar.thickness}px;"
        f"top:{sides.t + BAR_PAD}px;height:{whole - 2 * BAR_PAD}px"
    )
    drawn = f"<svg>{image(cells)}</svg>{words}{title}"
    return f'<div class="area" style="{place}">{drawn}</div>'


def _legend(figure: Any) -> str:
    shown = [t for t in figure.data if t.name and t.showlegend is not False]
    sides = figure.layout.margin
    keys = "".join(f"<li>{_key(trace)}{escape(trace.name)}</li>" for trace in shown)
    place = f"left:{sides.l}px;right:{sides.r}px;bottom:calc(100% - {sides.t - 6}px)"
    return f'<ul class="keys" style="{place}">{keys}</ul>'


def _key(trace: Any) -> str:
    """What a trace looks like, small."""
    if "lines" in (trace.mode or "lines"):
        colour = escape(str(trace.line.color))
        return f'<i style="background:{colour}"></i>'
    return f"<svg>{mark(trace.marker, 0.5, 0.5)}</svg>"
