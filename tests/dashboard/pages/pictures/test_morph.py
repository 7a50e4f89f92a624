"""A step and its changed one: which marks are the same thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from dash import html

from fsdpdoctor.quantities import MS
from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun
from fsdpdoctor_dashboard.data.series import INDEX
from fsdpdoctor_dashboard.pages.pictures.morph import marks_of, morph, pairs
from fsdpdoctor_dashboard.pages.whatif_model import simulated_run
from tests.dashboard.synthetic import Shape, write_run
from tests.simulate.steps import step

GATHER = INDEX["all-gather"]


def test_marks_of_one_unit_are_the_same_thing() -> None:
    """The first with the first; what has no counterpart has -1 there."""
    before = {(GATHER, "a"): [(0, 9), (20, 5)], (GATHER, "b"): [(40, 1)]}
    after = {(GATHER, "a"): [(3, 8)], (GATHER, "c"): [(7, 2)]}

    assert pairs(before, after) == [
        [GATHER, 0, 9, 3, 8],
        [GATHER, 20, 5, -1, -1],
        [GATHER, -1, -1, 7, 2],
        [GATHER, 40, 1, -1, -1],
    ]


@pytest.fixture
def simulated(tmp_path: Path) -> tuple[OpenRun, OpenRun]:
    """A step of two layers, and one of three."""
    path = write_run(tmp_path / "run", Shape(ranks=1, layers=2, steps=3, kernels=2))
    library = Library([path], open_run)
    run = library.wait("run")
    found = [simulated_run(library, run, step(n, blocking=True), "x") for n in (2, 3)]
    return found[0], found[1]


def test_a_step_begins_at_nought(simulated: tuple[OpenRun, OpenRun]) -> None:
    """And only its own marks are taken, not those of the steps after it."""
    run = simulated[0]
    length = int(run.measures.ranks[0].steps.duration_ns[0])
    starts = [start for marks in marks_of(run).values() for start, _ in marks]

    assert min(starts) >= 0
    assert max(starts) < length


def test_the_picture_says_both_steps(simulated: tuple[OpenRun, OpenRun]) -> None:
    """In words, and as numbers for the script; a new unit comes from nowhere."""
    made: Any = morph(*simulated, (50 * MS, 40 * MS))
    canvas: Any = next(p for p in made._traverse() if isinstance(p, html.Canvas))
    content = json.loads(getattr(canvas, "data-marks"))

    assert canvas.title == "The simulated step: 50.0 ms becomes 40.0 ms."
    assert (content["now"], content["then"]) == (50 * MS, 40 * MS)
    assert content["rows"][0][1] == "compute"
    assert any(mark[2] == -1 for mark in content["marks"])
    assert any(mark[2] >= 0 and mark[4] >= 0 for mark in content["marks"])
