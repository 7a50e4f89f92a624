"""Figures of ranks and memory: colours for what differs, numbers where they fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

import plotly.graph_objects as go

from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.quantities import ms
from fsdpdoctor.report import report_of
from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.kept.rank_sketches import Waits, steps_of_ranks
from fsdpdoctor_dashboard.pages.pictures import figures
from fsdpdoctor_dashboard.pages.pictures.figures import (
    LEAST_SPAN,
    every_rank,
    step_heat,
    wait_matrix,
)
from fsdpdoctor_dashboard.pages.pictures.memory_figures import curves_of
from tests.dashboard.synthetic import Shape, write_run


def heat(measures: Measures, theme: str, *, exposed: bool) -> go.Figure:
    """The heat map of a run's ranks."""
    return step_heat(steps_of_ranks(measures), theme, exposed=exposed)


@pytest.fixture(scope="module")
def measures(tmp_path_factory: pytest.TempPathFactory) -> Measures:
    """Four ranks whose steps hardly differ."""
    folder = tmp_path_factory.mktemp("figures") / "run"
    return measure(open_run(write_run(folder, Shape(ranks=4, layers=2, steps=6))))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Measures:
    """So many ranks that a row is thinner than a number."""
    folder = tmp_path_factory.mktemp("figures") / "wide"
    shape = Shape(ranks=64, layers=2, steps=4, kernels=1)
    return measure(open_run(write_run(folder, shape)))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_noise_has_the_colour_of_nothing(measures: Measures, theme: str) -> None:
    """Steps are coloured about their median, and all colours are 5 % at least."""
    cells = heat(measures, theme, exposed=False).data[0]

    assert np.nanmax(np.abs(cells.z)) < 1
    assert (cells.zmin, cells.zmax) == (-5, 5)
    assert cells.colorscale[1][0] == 0.5


def test_exposed_time_is_coloured_as_a_part_of_the_step(measures: Measures) -> None:
    """From none on, and a hundredth of a step is no strong colour."""
    cells = heat(measures, "light", exposed=True).data[0]
    taken = [rank.steps.duration_ns[rank.judged] for rank in measures.ranks]
    middle = float(np.median(np.concatenate(taken))) / 1e6

    assert cells.zmin == 0
    assert cells.zmax >= LEAST_SPAN * middle


def test_numbers_stand_where_there_is_room(measures: Measures, wide: Measures) -> None:
    """In four rows, and not in sixty-four, where each would lie on the next."""
    assert heat(measures, "light", exposed=False).data[0].text is not None
    assert heat(wide, "light", exposed=False).data[0].text is None


def test_samples_outside_of_a_step_are_no_curve(measures: Measures) -> None:
    """Where none lies within it, there are no axes with nothing on them."""
    rank = measures.ranks[0]
    step = int(rank.judged_steps[0])
    assert curves_of(rank, step)
    begin = int(rank.steps.start_ns[rank.steps.step == step][0])
    before = np.full_like(rank.memory.time_ns, begin - 1)
    late = replace(rank, memory=replace(rank.memory, time_ns=before))

    assert curves_of(late, step) == []


def test_cells_have_the_tables_digits(measures: Measures) -> None:
    """13.0 beside 14.5, as the table below has it, and not 13."""
    cells = heat(measures, "light", exposed=False).data[0]
    rank = measures.ranks[0]
    steps = rank.steps.duration_ns[rank.judged].tolist()

    assert list(cells.text[0]) == [ms(step).removesuffix(" ms") for step in steps]
    assert all("." in text for text in cells.text[0])


def test_many_ranks_fit_a_screen(measures: Measures, wide: Measures) -> None:
    """They stand beside each other, and their few steps are few rows."""
    few, many = (heat(m, "light", exposed=True) for m in (measures, wide))

    assert few.layout.yaxis.title.text == "rank"
    assert few.data[0].z.shape == (4, len(measures.ranks[0].judged_steps))
    assert (many.layout.xaxis.title.text, many.layout.height) == ("rank", 170)
    assert many.data[0].z.shape == (3, 64)
    assert many.data[0].x[-1] == "63"


def test_so_many_ranks_are_named_as_have_room() -> None:
    """All, or every second, fourth, ..., and never upright; eight fit on a phone."""
    assert every_rank(8) == {"dtick": 1, "tickangle": 0}
    assert every_rank(64)["dtick"] == 8
    assert every_rank(512)["dtick"] == 64
    assert every_rank(512, 16)["dtick"] == 32


@pytest.mark.parametrize("exposed", [False, True])
def test_of_too_many_ranks_the_one_that_is_furthest_off_is_shown(
    wide: Measures, monkeypatch: pytest.MonkeyPatch, exposed: bool
) -> None:
    """Of each neighbours: none that is slow drowns, and whose a cell is, is said."""
    every = heat(wide, "light", exposed=exposed).data[0]
    monkeypatch.setattr(figures, "MOST_COLUMNS", 22)
    few = heat(wide, "light", exposed=exposed).data[0]
    values = np.array(every.customdata)  # [steps, ranks] in ms
    off = values if exposed else np.array(every.z)

    assert few.z.shape == (3, 22)  # of 3 ranks each, the last of one
    assert list(few.x) == [str(rank) for rank in range(0, 64, 3)]
    for at in range(22):
        here = slice(3 * at, 3 * at + 3)
        worst = np.abs(off[:, here]).argmax(axis=1)
        shown = np.array(few.customdata)[:, at]
        assert shown[:, 0].tolist() == values[range(3), 3 * at + worst].tolist()
        assert shown[:, 1].tolist() == (3 * at + worst).tolist()
    assert "rank %{customdata[1]:d}" in few.hovertemplate
    assert (few.zmin, few.zmax) == (every.zmin, every.zmax)


def test_a_line_of_several_ranks_is_their_mean() -> None:
    """And is named for all of them."""
    waits = Waits(
        ranks=(0, 1, 2, 3, 4), together=2, last=(1, 4), ns=[[4, 8], [0, 2], [6, 0]]
    )
    cells = wait_matrix(waits, 2, "light").data[0]

    assert (list(cells.x), list(cells.y)) == (["1", "4"], ["0-1", "2-3", "4"])
    assert [[round(v * 1e6, 3) for v in row] for row in cells.z] == [
        [1, 2],
        [0, 0.5],
        [3, 0],
    ]
    assert "on average" in cells.hovertemplate


def test_bars_of_too_many_ranks_are_of_those_waited_for_most(
    wide: Measures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of ranks; both figures have the same."""
    report = report_of(wide)
    assert figures.shown_bars(report) == [*report.ranks]
    monkeypatch.setattr(figures, "MOST_BARS", 63)
    monkeypatch.setattr(figures, "SHOWN_BARS", 3)
    caused = sorted((-(r.wait_caused_ns_per_step or 0), r.rank) for r in report.ranks)
    worst = sorted(str(rank) for _, rank in caused[:3])

    for bars in figures.last_arrivals(report, "light"):
        assert sorted(bars.data[0].x) == worst
