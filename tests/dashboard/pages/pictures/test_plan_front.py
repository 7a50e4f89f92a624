"""The front: which plans are on its line, where it bends, and what a click sets."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.quantities import MS
from fsdpdoctor.renderers.reading.unit_names import UnitNames
from fsdpdoctor_dashboard.pages.pictures.plan_front import (
    MIB,
    Point,
    front,
    kind_of,
    knee,
    named,
    pareto,
)
from tests.dashboard.pages.test_whatif import plan


def point(cost: int, step: int) -> Point:
    """A plan by what it takes and what it comes to."""
    return Point(f"{cost}, {step}", cost, step, 1)


def test_the_line_has_what_nothing_beats() -> None:
    """In time and memory at once, the smallest first; of equals the first."""
    points = [point(0, 100), point(5, 60), point(5, 70), point(9, 60), point(-2, 120)]

    assert pareto(points) == [point(-2, 120), point(0, 100), point(5, 60)]


def test_the_knee_is_after_the_dear_half() -> None:
    """Where the line is furthest below the straight one; a straight line has none."""
    bent = [point(0, 100), point(2, 50), point(4, 45), point(10, 40)]

    assert knee(bent) == bent[1]
    assert knee(bent[:2]) is None
    assert knee([point(0, 100), point(5, 50), point(10, 0)]) is None


def test_points_set_plans_and_say_what_they_are() -> None:
    """Worth it, within the error, or not faster: each its own trace."""
    plans = {
        str(p.plan): (p, p.memory_cost_bytes)
        for p in (plan(2, 20, MIB), plan(3, 2), plan(4, -9, -MIB))
    }
    figure = front(plans, 100 * MS, "light", UnitNames())
    drawn = {t.name: t for t in figure.data if t.customdata is not None}

    assert [kind_of(p) for p, _ in plans.values()] == list(drawn)
    assert [json.loads(t.customdata[0][0])["plan"] for t in drawn.values()] == [
        '{"merge":2}',
        '{"merge":3}',
        '{"merge":4}',
    ]
    assert list(drawn["worth it"].y) == [80.0]
    assert list(drawn["worth it"].x) == [1.0]


def test_the_line_has_its_error_about_it() -> None:
    """A band as wide as the predictions are unsure; none at the run as it was."""
    found = plan(2, 20, MIB)
    figure = front({"merge 2": (found, MIB)}, 100 * MS, "light", UnitNames())
    band = next(t for t in figure.data if t.name == "error of the best line")

    assert list(band.y) == [100, 85, 75, 100]
    assert [a.text for a in figure.layout.annotations] == ["merge 2"]


def test_names_that_have_no_room_are_left_out() -> None:
    """The knee has its name first; never are two at one height."""
    line = [point(0, 1000), point(20, 500), point(40, 495), point(100, 490)]

    assert named(line, line) == [line[1], line[0]]
    assert named(line[:1], line[:1]) == line[:1]
