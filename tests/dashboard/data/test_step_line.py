"""Every step of a run in a line of bars."""

from __future__ import annotations

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor_dashboard.data.slices import StepRows
from fsdpdoctor_dashboard.data.step_line import MOST_BARS, step_line
from tests.dashboard.data.test_initial_view import store_of


def test_each_step_has_a_bar() -> None:
    """Its number, begin, end and length, of the first rank, from the origin on."""
    store = store_of(
        StepRows.build(3, step=[3, 4, 6], start_ns=[7, 27, 67], end_ns=[27, 37, 107])
    )

    assert step_line(store) == {
        "count": 3,
        "usual": 20,
        "bars": [[3, 0, 20, 20], [4, 20, 30, 10], [6, 60, 100, 40]],
    }


def test_usual_is_the_judged_step_of_the_middle_length() -> None:
    """Steps that were not judged, as warm-up, do not count."""
    rows = StepRows.build(3, step=[3, 4, 6], start_ns=[7, 27, 67], end_ns=[27, 37, 107])

    assert step_line(store_of(rows, typical_step=4))["usual"] == 10


def test_a_slow_step_does_not_drown_among_many() -> None:
    """Neighbours that share a bar show the longest of them, and its number."""
    count = 2 * MOST_BARS + 1
    starts = [at * 100 for at in range(count)]
    ends = [at + (90 if at == 500 * 100 else 10) for at in starts]
    found = step_line(
        store_of(StepRows.build(count, step=range(count), start_ns=starts, end_ns=ends))
    )

    assert found["count"] == count
    assert len(found["bars"]) == -(-count // 3)
    assert [bar for bar in found["bars"] if bar[3] > 10] == [[500, 49_800, 50_090, 90]]


def test_a_run_without_steps_has_no_bars() -> None:
    """A trace without marks of steps, or a run that ended in its first."""
    assert step_line(store_of(StepRows.build(0))) == {
        "count": 0,
        "usual": 0,
        "bars": [],
    }
