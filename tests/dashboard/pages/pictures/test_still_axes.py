"""Axes of stills: plotly's ticks, and where values stand."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

import plotly.graph_objects as go

from fsdpdoctor_dashboard.pages.pictures.figures import styled
from fsdpdoctor_dashboard.pages.pictures.still_axes import (
    Axis,
    NoStillError,
    axis_of,
    numbers,
)


def axis(name: str, values: list[Any], **given: Any) -> Axis:
    """An axis of a figure 380 pixels high, with such properties."""
    figure = styled(go.Figure(go.Scatter()), "light", 380)
    figure.layout[f"{name}axis"].update(given)
    return axis_of(figure, name, values)


@pytest.mark.parametrize(
    ("low", "high", "count", "words"),
    [
        (0, 25.3, 9, "0 5 10 15 20 25"),
        (0, 0.0536, 8.3, "0 0.01 0.02 0.03 0.04 0.05"),
        (0, 946, 6, "0 200 400 600 800"),
        (-33.1, 33.1, 5, "\u221220 0 20"),
        (0, 4.45, 10, "0 0.5 1 1.5 2 2.5 3 3.5 4"),
        (0, 508, 10, "0 100 200 300 400 500"),
    ],
)
def test_ticks_are_plotlys(low: float, high: float, count: float, words: str) -> None:
    """Two, five or ten of a power of ten apart; a minus is a minus."""
    assert " ".join(text for _, text in numbers(low, high, count)) == words


def test_a_step_that_is_given_is_kept() -> None:
    """Of what can be counted every number."""
    assert [at for at, _ in numbers(0, 3.2, 5, 1)] == [0, 1, 2, 3]


def test_names_share_the_axis() -> None:
    """Each at the middle of its room; of many every second or third is said."""
    few = axis("x", ["0", "1", "0", "2", "3"], type="category")
    assert [few.share(name) for name in "0123"] == [0.125, 0.375, 0.625, 0.875]
    assert [tick.words for tick in few.ticks()] == ["0", "1", "2", "3"]

    many = axis("y", [str(n) for n in range(64)], type="category")
    assert many.pixels == 380 - 10 - 50
    assert [tick.words for tick in many.ticks()][:3] == ["0", "3", "6"]


def test_a_logarithm_has_ticks_of_its_own() -> None:
    """Those in sight; a figure without any is not drawn here."""
    sizes = {"type": "log", "range": [1, 3]}
    own = axis(
        "x", [10, 1000], **sizes, tickvals=[1, 10, 100], ticktext=["a", "b", "c"]
    )
    assert [tuple(tick) for tick in own.ticks()] == [(0.0, "b"), (0.5, "c")]
    with pytest.raises(NoStillError):
        axis("x", [10, 1000], **sizes).ticks()


def test_what_plotly_decides_is_left_to_it() -> None:
    """A range that it chooses, and names in two rows."""
    with pytest.raises(NoStillError):
        axis("y", [1, 2])
    with pytest.raises(NoStillError):
        axis("y", ["a"], type="multicategory")
