"""Marks of stills: where each stands, and in what colour."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

import plotly.graph_objects as go

from fsdpdoctor_dashboard.pages.pictures import still_marks
from fsdpdoctor_dashboard.pages.pictures.still_axes import Axis, NoStillError
from fsdpdoctor_dashboard.pages.pictures.still_marks import Stacks, marks_of


def flat(name: str, high: float, *names: str, down: bool = False) -> Axis:
    """An axis from 0, or of names."""
    return Axis(name, (0, 1), 0, high, 100, names=names, reversed=down)


def drawn(trace: Any, x: Axis, y: Axis, stacks: Stacks | None = None) -> list[str]:
    """A trace's marks."""
    return [*marks_of(trace, x, y, stacks or Stacks())]


def boxes(marks: list[str]) -> list[tuple[str, ...]]:
    """Left, top, width and height of rectangles."""
    text = "".join(marks)
    return re.findall(
        r'<rect x="(.*?)%" y="(.*?)%" width="(.*?)%" height="(.*?)%"', text
    )


def test_bars_stand_on_nought() -> None:
    """Four fifths of a name's room wide, as high as their value."""
    bars = go.Bar(x=["a", "b"], y=[10, 4], marker={"color": "#123456"})
    marks = drawn(bars, flat("x", 1, "a", "b"), flat("y", 10))

    assert boxes(marks) == [
        ("5.000", "0.000", "40.000", "100.000"),
        ("55.000", "60.000", "40.000", "40.000"),
    ]
    assert 'fill="#123456"' in marks[0]


def test_windows_begin_where_they_do() -> None:
    """Bars along an axis of time, in the row of their name."""
    bars = go.Bar(x=[2, 1], base=[1, 7], y=["a", "b"], orientation="h")
    marks = drawn(bars, flat("x", 10), flat("y", 1, "a", "b", down=True))

    assert boxes(marks) == [
        ("10.000", "5.000", "20.000", "40.000"),
        ("70.000", "55.000", "10.000", "40.000"),
    ]


def test_a_box_has_its_quartiles() -> None:
    """The box from the first to the third, a line at the median, whiskers beyond."""
    box = go.Box(
        y=["a"],
        lowerfence=[0],
        q1=[2],
        median=[3],
        q3=[6],
        upperfence=[10],
        orientation="h",
        marker={"color": "#123456"},
    )
    marks = drawn(box, flat("x", 10), flat("y", 1, "a", down=True))

    assert boxes(marks) == [("20.000", "25.500", "40.000", "49.000")]
    across = re.findall(r'x1="(.*?)%".*?x2="(.*?)%"', "".join(marks))
    assert across == [
        ("30.000", "30.000"),
        ("0.000", "20.000"),
        ("60.000", "100.000"),
        ("0.000", "0.000"),
        ("100.000", "100.000"),
    ]


def test_a_line_goes_on_until_it_changes() -> None:
    """Memory has steps: what was held is held until the next sample."""
    line = go.Scatter(x=[0, 5], y=[1, 2], mode="lines", line={"shape": "hv"})
    (path,) = drawn(line, flat("x", 10), flat("y", 4))

    assert 'd="M0 7500 5000 7500 5000 5000"' in path


def test_a_stack_stands_on_what_is_below() -> None:
    """The second trace's edge is both, and the area between is filled."""
    stacks = Stacks()
    given = {"x": [0, 10], "mode": "lines", "stackgroup": "held"}
    x, y = flat("x", 10), flat("y", 10)
    drawn(go.Scatter(y=[1, 1], **given), x, y, stacks)
    area, edge = drawn(go.Scatter(y=[2, 4], **given), x, y, stacks)

    assert 'd="M0 7000 10000 5000"' in edge
    assert 'd="M0 7000 10000 5000 10000 9000 0 9000Z"' in area
    moved = given | {"x": [0, 9]}
    with pytest.raises(NoStillError):
        drawn(go.Scatter(y=[2, 4], **moved), x, y, stacks)


def test_points_have_their_looks() -> None:
    """Filled or hollow, and other shapes; what is not known is not drawn here."""

    def points(symbol: str) -> Any:
        marker = {
            "symbol": symbol,
            "color": "#123456",
            "size": 10,
            "line": {"width": 2},
        }
        return go.Scatter(x=[5], y=[1], mode="markers", marker=marker)

    x, y = flat("x", 10), flat("y", 4)
    (full,) = drawn(points("circle"), x, y)
    (hollow,) = drawn(points("circle-open"), x, y)
    assert 'cx="50.000%" cy="75.000%" r="5.0" fill="#123456" stroke="#444"' in full
    assert 'fill="none" stroke="#123456" stroke-width="2' in hollow
    assert 'x="50.000%" y="75.000%"' in drawn(points("diamond"), x, y)[0]
    with pytest.raises(NoStillError):
        drawn(points("star"), x, y)


def pixels(mark: str) -> list[bytes]:
    """The rows of a picture's pixels."""
    png = base64.b64decode(re.findall(r"base64,(.*?)\"", mark)[0])
    wide, _ = struct.unpack(">II", png[16:24])
    at = png.index(b"IDAT") + 4
    raw = zlib.decompress(png[at:-16])
    size = 4 * wide + 1
    return [raw[start + 1 : start + size] for start in range(0, len(raw), size)]


def test_a_heat_map_is_a_picture() -> None:
    """A pixel a cell, its colour between those of the scale; what is not known is
    clear. Numbers stand in the middles.
    """
    heat = go.Heatmap(
        z=[[0, 5], [10, float("nan")]],
        x=["0", "1"],
        y=["0", "1"],
        zmin=0,
        zmax=10,
        colorscale=[[0, "#000000"], [1, "#64c8ff"]],
        text=[["a", "b"], ["<c>", ""]],
        textfont={"color": "#123456"},
    )
    picture, *words = drawn(
        heat, flat("x", 1, "0", "1"), flat("y", 1, "0", "1", down=True)
    )

    assert pixels(picture) == [
        bytes([0, 0, 0, 255, 50, 100, 128, 255]),
        bytes([100, 200, 255, 255, 0, 0, 0, 0]),
    ]
    assert words[2] == (
        '<text x="25.000%" y="75.000%" class="cell" fill="#123456">&lt;c&gt;</text>'
    )


def test_what_is_too_much_is_left_to_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is a kind of trace that is not known."""
    x, y = flat("x", 10), flat("y", 10)
    with pytest.raises(NoStillError):
        drawn(go.Violin(y=[1]), x, y)
    monkeypatch.setattr(still_marks, "MOST_MARKS", 2)
    with pytest.raises(NoStillError):
        drawn(go.Scatter(x=[1, 2, 3], y=[1, 2, 3], mode="lines"), x, y)
