"""The What-if page's part on a job that tunes itself: what it has measured so far."""

from __future__ import annotations

from pathlib import Path

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.quantities import count
from fsdpdoctor.recorder.autotune.ranking import read_ranking
from fsdpdoctor.recorder.autotune.trials import Fate, read_trials
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor_dashboard.pages.components import plot


def trials_part(folder: Path, theme: str) -> list[Component]:
    """Nothing where the run was not tuned, or its files cannot be read."""
    from fsdpdoctor_dashboard.pages.pictures.trial_points import trial_points

    try:
        ranking, trials = read_ranking(folder), read_trials(folder)
    except (OSError, ValueError):
        return []
    if ranking is None or ranking.withheld is not None:
        return []
    said = count(len(ranking.candidates), "change")
    words = f"{said} ranked, {len(trials)} of them measured in the running job."
    kept = [one.summary for one in trials if one.fate is Fate.KEPT]
    if kept:
        words += f" Kept: {visible(kept[-1])}."
    return [
        html.H2("Tuned while it trains"),
        html.P(words, className="faint"),
        html.Div(plot(trial_points(ranking, trials, theme)), className="plan-front"),
    ]
