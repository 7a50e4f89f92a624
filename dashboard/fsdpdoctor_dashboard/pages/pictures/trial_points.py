"""What a tuning has measured so far, on the front that was predicted for it."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from fsdpdoctor.quantities import MS
from fsdpdoctor.recorder.autotune.ranking import Ranking
from fsdpdoctor.recorder.autotune.trials import Fate, Trial
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.renderers.palette import SERIES
from fsdpdoctor.renderers.reading.unit_names import UnitNames
from fsdpdoctor_dashboard.pages.pictures.figures import styled
from fsdpdoctor_dashboard.pages.pictures.plan_front import GIB, MIB, Point, pareto

FATES = {
    Fate.KEPT: (SERIES["reduce_scatter"], "circle"),
    Fate.ON_TRIAL: (SERIES["all_gather"], "circle"),
    Fate.PUT_BACK: (SERIES["kernel"], "x"),
}
"""Colours and shapes of what was measured."""


def trial_points(
    ranking: Ranking, trials: Sequence[Trial], theme: str, named: UnitNames
) -> go.Figure:
    """Step against bytes per rank: predicted as a line, measured as points with their
    bounds.
    """
    was = Point("as it is", 0, ranking.measured_ns, 0)
    predicted = [
        was,
        *(
            Point(named.words(c.summary), c.bytes, c.step_ns, 0)
            for c in ranking.candidates
        ),
    ]
    largest = max(point.cost for point in predicted)
    unit, name = (GIB, "GiB") if largest >= GIB else (MIB, "MiB")
    figure = go.Figure()
    line = pareto(predicted)
    figure.add_scatter(
        x=[point.cost / unit for point in line],
        y=[point.step_ns / MS for point in line],
        mode="lines",
        line={"color": SERIES["forward"], "width": 1.5},
        hoverinfo="skip",
        name="predicted, best for its memory",
    )
    _predicted(figure, predicted, unit)
    for fate, (colour, symbol) in FATES.items():
        some = [one for one in trials if one.fate is fate]
        if some:
            words = [visible(named.words(one.summary)) for one in some]
            _measured(figure, some, unit, words, f"measured: {fate}")
            figure.data[-1].marker = {"color": colour, "size": 11, "symbol": symbol}
    figure.update_xaxes(title=f"predicted memory beyond the script's, {name} per rank")
    figure.update_yaxes(title="step, ms")
    return styled(figure, theme, 320, legend=True)


def _predicted(figure: go.Figure, points: Sequence[Point], unit: int) -> None:
    figure.add_scatter(
        x=[point.cost / unit for point in points],
        y=[point.step_ns / MS for point in points],
        mode="markers",
        marker={"color": SERIES["forward"], "size": 9, "symbol": "circle-open"},
        text=[visible(point.name) for point in points],
        hovertemplate="%{text}<br>%{y:.4g} ms, %{x:+.4g}<extra>predicted</extra>",
        name="predicted",
    )


def _measured(
    figure: go.Figure,
    trials: Sequence[Trial],
    unit: int,
    words: Sequence[str],
    name: str,
) -> None:
    y = [one.measured_ns / MS for one in trials]
    figure.add_scatter(
        x=[one.bytes / unit for one in trials],
        y=y,
        error_y={
            "array": [(one.high_ns - one.measured_ns) / MS for one in trials],
            "arrayminus": [(one.measured_ns - one.low_ns) / MS for one in trials],
        },
        mode="markers",
        text=words,
        hovertemplate="%{text}<br>%{y:.4g} ms, %{x:+.4g}<extra>measured</extra>",
        name=name,
    )
