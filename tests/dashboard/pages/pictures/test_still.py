"""Stills of figures: every figure of every page has one, with all of its words."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

import plotly.graph_objects as go
from dash import dcc
from dash.development.base_component import Component

from fsdpdoctor_dashboard.pages import collectives, memory, ranks
from fsdpdoctor_dashboard.pages.components import Context
from fsdpdoctor_dashboard.pages.pictures.figures import from_nought, styled
from fsdpdoctor_dashboard.pages.pictures.still import still
from tests.dashboard.said import opened

TRACES = Path(__file__).parents[4] / "traces"


def figures(part: object) -> list[Any]:
    """All figures of a page."""
    if isinstance(part, list | tuple):
        return [found for one in part for found in figures(one)]
    if isinstance(part, dcc.Graph):
        graph: Any = part
        return [graph.figure]
    if isinstance(part, Component):
        return figures(getattr(part, "children", None))
    return []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("case", ["healthy-hsdp", "device-slow-wire", "killed-rank"])
def test_every_figure_has_a_still(case: str, theme: str) -> None:
    """As high as plotly's, its axes and what it is made of named as there, and as many
    marks as it has values.
    """
    run = opened(TRACES / case)
    context = Context(base="/", theme=theme, runs=(run,))
    found = [
        f for page in (collectives, ranks, memory) for f in figures(page.page(context))
    ]
    assert len(found) >= 3
    for figure in found:
        drawn = still(figure)
        assert drawn.startswith(
            f'<div class="still" style="height:{figure.layout.height}px">'
        )
        words = unescape(re.sub(r"<[^>]*>", "\n", drawn)).split("\n")
        for axis in (*figure.select_xaxes(), *figure.select_yaxes()):
            assert axis.title.text is None or axis.title.text in words
        if figure.layout.showlegend:
            names = {t.name for t in figure.data if t.showlegend is not False}
            assert names <= set(words)
        for trace in figure.data:
            written = trace.type == "heatmap" and trace.text is not None
            for row in trace.text if written else ():
                assert set(row) <= set(words)
        bars = sum(len(trace.x) for trace in figure.data if trace.type == "bar")
        boxes = sum(trace.type == "box" for trace in figure.data)
        assert drawn.count("<rect ") == bars + boxes
        points = [t for t in figure.data if t.type == "scatter" and t.mode == "markers"]
        rounds = [t for t in points if t.marker.symbol in ("circle", "circle-open")]
        inside = drawn.split('<ul class="keys"')[0]
        assert inside.count("<circle ") == sum(len(trace.x) for trace in rounds)


def test_levels_and_their_words_stand_together() -> None:
    """A line across at its height, its words above it."""
    figure = styled(go.Figure(), "light", 160)
    figure.add_scatter(x=[0, 1], y=[1, 2], mode="lines", line={"color": "#123456"})
    figure.update_xaxes(range=[0, 1])
    figure.update_yaxes(range=from_nought(2))
    line = {"dash": "dash", "color": "#d5421e", "width": 1.4}
    figure.add_hline(y=1.06, line=line, annotation_text="80 GiB & more")
    drawn = still(figure)

    assert 'y1="50.000%" x2="100.000%" y2="50.000%" stroke="#d5421e"' in drawn
    assert 'bottom:calc(50.000% + 2px)">80 GiB &amp; more</span>' in drawn
    place = "left:calc(70px + 0.0000*(100% - 90px));width:calc(1.0000*(100% - 90px));"
    assert f"{place}top:10.0px;height:100.0px" in drawn


def test_what_is_not_drawn_here_has_its_place() -> None:
    """An empty one, as high."""
    figure = styled(go.Figure(go.Violin(y=[1, 2])), "light", 160)

    assert still(figure) == '<div class="still" style="height:160px"></div>'
