"""The marks of a figure's traces as SVG, in shares of the area between its axes."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from fsdpdoctor_dashboard.pages.pictures.still_axes import Axis, NoStillError

OUTLINE = "#444"
"""Plotly's, around filled marks."""
BAR, BOX, WHISKER = 0.8, 0.49, 0.5
"""How much of its name's room a bar and a box take; of a box its whiskers' ends."""
FILLED = 0.5
"""How much a filled area covers."""
MOST_MARKS = 4000
FINE = 10_000
"""Of a path's own coordinates, to both sides."""
SHAPES = {
    "triangle-down": "M-6 -3.5 6 -3.5 0 7Z",
    "diamond": "M0 -7.5 7.5 0 0 7.5 -7.5 0Z",
}
"""Of a mark 11 pixels wide."""


class Stacks:
    """What stands below the next trace of a stack, by the stack's name."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[list[Any], list[float]]] = {}

    def on(self, group: str, x: list[Any], y: list[float]) -> tuple[list[float], ...]:
        """The lower and the upper edge."""
        before = self._held.get(group)
        if before is not None and before[0] != x:
            raise NoStillError("a stack of different moments")
        lower = before[1] if before is not None else [0.0] * len(y)
        upper = [below + own for below, own in zip(lower, y, strict=True)]
        self._held[group] = (x, upper)
        return lower, upper


def marks_of(trace: Any, x: Axis, y: Axis, stacks: Stacks) -> Iterator[str]:
    """A trace's marks."""
    kinds = {"scatter": _scatter, "bar": _bars, "box": _boxes, "heatmap": _heat}
    draw = kinds.get(trace.type)
    if draw is None:
        raise NoStillError(f"a {trace.type}")
    if draw is _scatter:
        yield from _scatter(trace, x, y, stacks)
    else:
        yield from draw(trace, x, y)  # type: ignore[operator]


def per_cent(share: float) -> str:
    """A share of the area, as CSS has it."""
    return f"{100 * share:.3f}%"


def _top(y: Axis, value: object) -> float:
    share = y.share(value)
    return share if y.reversed else 1 - share


def _listed(values: Any) -> list[Any]:
    found = values.tolist() if hasattr(values, "tolist") else list(values or ())
    if len(found) > MOST_MARKS:
        raise NoStillError("too many marks")
    return found


def _scatter(trace: Any, x: Axis, y: Axis, stacks: Stacks) -> Iterator[str]:
    across, up = _listed(trace.x), _listed(trace.y)
    if not across:
        return
    mode = trace.mode or "lines"
    colour = escape(str(trace.line.color or trace.marker.color or OUTLINE))
    if "lines" in mode:
        lower: list[float] = []
        if trace.stackgroup is not None:
            lower, up = stacks.on(trace.stackgroup, across, up)
        stepped = trace.line.shape == "hv"
        points = _points(x, y, across, up, stepped=stepped)
        if lower:
            below = _points(x, y, across, lower, stepped=stepped)
            around = " ".join([*points, *reversed(below)])
            yield _path(f"M{around}Z", f'fill="{colour}" fill-opacity="{FILLED}"')
        stroke = f'stroke="{colour}" stroke-width="{trace.line.width or 2}"'
        yield _path(f"M{' '.join(points)}", f'fill="none" {stroke}')
    if "markers" in mode:
        for at, value in zip(across, up, strict=True):
            yield mark(trace.marker, x.share(at), _top(y, value))


def _points(
    x: Axis, y: Axis, across: Sequence[Any], up: Sequence[Any], *, stepped: bool
) -> list[str]:
    places = [
        (round(FINE * x.share(at)), round(FINE * _top(y, value)))
        for at, value in zip(across, up, strict=True)
    ]
    found = []
    for number, (left, top) in enumerate(places):
        if stepped and number:
            found.append(f"{left} {places[number - 1][1]}")
        found.append(f"{left} {top}")
    return found


def _path(drawn: str, looks: str) -> str:
    """A path that is stretched with the area while its line stays as wide."""
    return (
        f'<svg viewBox="0 0 {FINE} {FINE}" preserveAspectRatio="none">'
        f'<path d="{drawn}" vector-effect="non-scaling-stroke" {looks}/></svg>'
    )


def mark(marker: Any, left: float, top: float) -> str:
    """One point."""
    colour, kind = escape(str(marker.color)), marker.symbol or "circle"
    wide = marker.line.width
    if kind.startswith("circle"):
        hollow = kind.endswith("-open")
        stroke = colour if hollow else OUTLINE
        looks = f'fill="{"none" if hollow else colour}"'
        if wide or hollow:
            looks += f' stroke="{stroke}" stroke-width="{wide or 1}"'
        return (
            f'<circle cx="{per_cent(left)}" cy="{per_cent(top)}" '
            f'r="{(marker.size or 6) / 2}" {looks}/>'
        )
    if kind not in SHAPES:
        raise NoStillError(f"a mark like a {kind}")
    return (
        f'<svg x="{per_cent(left)}" y="{per_cent(top)}" class="mark">'
        f'<path d="{SHAPES[kind]}" fill="{colour}"/></svg>'
    )


def _rectangle(left: float, top: float, wide: float, high: float, looks: str) -> str:
    return (
        f'<rect x="{per_cent(left)}" y="{per_cent(top)}" '
        f'width="{per_cent(wide)}" height="{per_cent(high)}" {looks}/>'
    )


def _bars(trace: Any, x: Axis, y: Axis) -> Iterator[str]:
    looks = f'fill="{escape(str(trace.marker.color))}"'
    across, up = _listed(trace.x), _listed(trace.y)
    if trace.orientation == "h":
        bases = _listed(trace.base) if trace.base is not None else [0] * len(across)
        thick = BAR * y.room
        for base, long, name in zip(bases, across, up, strict=True):
            left, right = x.share(base), x.share(base + long)
            top = _top(y, name) - thick / 2
            yield _rectangle(left, top, right - left, thick, looks)
        return
    thick = BAR * x.room
    for name, value in zip(across, up, strict=True):
        left, top = x.share(name) - thick / 2, _top(y, value)
        yield _rectangle(left, top, thick, _top(y, 0) - top, looks)


def _boxes(trace: Any, x: Axis, y: Axis) -> Iterator[str]:
    """A box from the first quartile to the third, its median, and its whiskers."""
    colour = escape(str(trace.marker.color))
    stroke = f'stroke="{colour}" stroke-width="2"'
    high = BOX * y.room
    ends = WHISKER * high / 2
    fields = ("lowerfence", "q1", "median", "q3", "upperfence")
    values = [_listed(trace[field]) for field in fields]
    for name, *five in zip(_listed(trace.y), *values, strict=True):
        middle = _top(y, name)
        low, first, median, third, last = map(x.share, five)
        looks = f'fill="{colour}" fill-opacity="{FILLED}" {stroke}'
        yield _rectangle(first, middle - high / 2, third - first, high, looks)
        for left, right, from_, to in (
            (median, median, middle - high / 2, middle + high / 2),
            (low, first, middle, middle),
            (third, last, middle, middle),
            (low, low, middle - ends, middle + ends),
            (last, last, middle - ends, middle + ends),
        ):
            yield line(left, from_, right, to, stroke)


def line(left: float, top: float, right: float, bottom: float, looks: str) -> str:
    """A straight one."""
    return (
        f'<line x1="{per_cent(left)}" y1="{per_cent(top)}" '
        f'x2="{per_cent(right)}" y2="{per_cent(bottom)}" {looks}/>'
    )


def _heat(trace: Any, x: Axis, y: Axis) -> Iterator[str]:
    """A heat map's cells are the pixels of a picture, which is stretched."""
    rows = [_listed(row) for row in trace.z]
    if not rows or len(rows) * len(rows[0]) > MOST_MARKS:
        raise NoStillError("too many cells")
    low, high = heat_range(trace)
    stops = [(float(at), _rgb(colour)) for at, colour in trace.colorscale]
    pixels = [[colour_at(stops, value, low, high) for value in row] for row in rows]
    yield image(pixels)
    if trace.xgap:
        gap = 'stroke="var(--bg)" stroke-width="1"'
        for at in range(1, len(rows[0])):
            yield line(at * x.room, 0, at * x.room, 1, gap)
        for at in range(1, len(rows)):
            yield line(0, at * y.room, 1, at * y.room, gap)
    if trace.text is None:
        return
    ink = escape(str(trace.textfont.color))
    for row, words in zip(_listed(trace.y), trace.text, strict=True):
        for column, word in zip(_listed(trace.x), words, strict=True):
            place = f'x="{per_cent(x.share(column))}" y="{per_cent(_top(y, row))}"'
            yield f'<text {place} class="cell" fill="{ink}">{escape(str(word))}</text>'


def heat_range(trace: Any) -> tuple[float, float]:
    """From which value to which its colours go."""
    cells = [value for row in trace.z for value in row if value == value]
    low = trace.zmin if trace.zmin is not None else min(cells, default=0)
    high = trace.zmax if trace.zmax is not None else max(cells, default=0)
    return float(low), float(high) if high > low else float(low) + 1


Pixel = tuple[int, int, int, int]


def colour_at(
    stops: Sequence[tuple[float, tuple[int, ...]]],
    value: float,
    low: float,
    high: float,
) -> Pixel:
    """A value's colour, between those of its neighbours in the scale."""
    if value != value:
        return (0, 0, 0, 0)
    share = min(max((value - low) / (high - low), 0.0), 1.0)
    after = next(at for at, stop in enumerate(stops) if stop[0] >= share)
    (first, one), (last, other) = stops[max(0, after - 1)], stops[after]
    part = (share - first) / (last - first) if last > first else 0.0
    red, green, blue = (
        round(a + (b - a) * part) for a, b in zip(one, other, strict=True)
    )
    return red, green, blue, 255


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


def image(pixels: Sequence[Sequence[Pixel]]) -> str:
    """A picture that fills the area, whose pixels stay sharp."""
    data = base64.b64encode(png(pixels)).decode()
    return (
        f'<image href="data:image/png;base64,{data}" width="100%" height="100%" '
        'preserveAspectRatio="none" style="image-rendering:pixelated"/>'
    )


def png(pixels: Sequence[Sequence[Pixel]]) -> bytes:
    """A PNG file of such pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    raw = b"".join(
        b"\0" + bytes(part for pixel in row for part in pixel) for row in pixels
    )
    head = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 6, 0, 0, 0)
    parts = (b"IHDR", head), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
