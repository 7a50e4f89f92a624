"""Units as bars and as a map: the report's own figures, in the model's order."""

from __future__ import annotations

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.pages.components import Context
from fsdpdoctor_dashboard.pages.pictures.unit_bars import exposed_ns, parts_of
from fsdpdoctor_dashboard.pages.pictures.unit_map import full_colour_ns, fullest, strips
from fsdpdoctor_dashboard.pages.units import page


def test_a_bar_is_made_of_the_reports_figures(library: Library) -> None:
    """Forward, backward, and exposed time, which its causes add up to."""
    for unit in library.wait("before").report.units:
        parts = parts_of(unit)
        known = {part.words: part.ns for part in parts}
        exposed = sum(
            part.ns for part in parts if part.cause or part.words == "exposed"
        )

        assert known.get("own forward", 0) == (unit.forward_ns or 0)
        assert known.get("own backward", 0) == (unit.backward_ns or 0)
        assert abs(exposed - exposed_ns(unit)) <= 4  # each cause is rounded


def test_a_map_has_all_units_in_order() -> None:
    """Rows of about equal wholes, nothing left out and nothing moved."""
    sizes = [100, 10, 10, 10, 10, 10, 10, 10, 10, 20]
    rows = strips(sizes)

    assert [at for row in rows for at in row] == list(range(len(sizes)))
    assert len(rows) == 2
    assert strips([5]) == [[0]]


def test_bars_and_map_say_what_they_show(library: Library) -> None:
    """Each is reached by a key and named, with its figures in words."""
    made = page(Context(base="/", theme="light", runs=(library.wait("before"),)))
    text = str(made)

    assert "model.layers.3, per step on average: own forward" in text
    assert "tabIndex=0" in text
    assert "data-open" in text


def test_a_map_does_not_paint_noise() -> None:
    """Full colour is the most exposed unit, and a twentieth of the step in all."""
    assert full_colour_ns([30, 10], 100) == 30
    assert full_colour_ns([2, 1, 0, 1], 1000) == 12.5
    assert full_colour_ns([0], 0) == 1


def test_a_map_begins_where_most_is_whole() -> None:
    """In the middle of the first such stretch, in thousandths of the step."""
    windows = {"<root>": ["0,900"], "layers.0": ["100,300", "500,600"]}

    assert fullest(windows, 1000) == 200
    assert fullest({"a": ["0,400"], "b": ["400,1000"]}, 1000) == 200
