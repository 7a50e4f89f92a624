"""The searched plans: those worth it first, each row sets the knobs. And what a job
that tunes itself has measured so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.advice import Told, memory_cost
from fsdpdoctor.quantities import count, ms
from fsdpdoctor.recorder.autotune.ranking import read_ranking
from fsdpdoctor.recorder.autotune.trials import Fate, read_trials
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.renderers.reading.unit_names import UnitNames
from fsdpdoctor.renderers.tables import Cell, Column
from fsdpdoctor.simulate.plans.predict import Prediction
from fsdpdoctor_dashboard.pages.components import (
    columns,
    head_cell,
    plot,
    table_cell,
    with_data,
)
from fsdpdoctor_dashboard.pages.plan_knobs import setting
from fsdpdoctor_dashboard.pages.whatif import bytes_change

FASTER = "Changes worth it"
NOISE = "Faster by less than the prediction's own error"
SMALLER = "Less memory, and not faster"


def front_tables(
    found: Sequence[Prediction], told: Told, named: UnitNames
) -> list[Component]:
    """The searched plans by what they win: beyond their own error, within it, and
    those that only save memory, which are not worth it for the time.
    """
    kinds: dict[str, list[Prediction]] = {FASTER: [], NOISE: [], SMALLER: []}
    for one in sorted(found, key=lambda p: -p.gain_ns):
        faster = FASTER if one.gain_ns > one.error_ns else NOISE
        kinds[faster if one.gain_ns > 0 else SMALLER].append(one)
    parts: list[Component] = []
    for at, (title, plans) in enumerate(kinds.items()):
        if plans:
            table = _front_table(f"front-table-{at}", plans, told, named)
            quiet = "" if title == FASTER else "quiet"
            parts += [html.H2(title, className=quiet), html.Div(table, className=quiet)]
    return parts


TIMES = ("predicted step", "+-", "gain per step")
HEADS = columns(
    *("change", *TIMES, "memory per rank"),
    left=("change",),
    units={**dict.fromkeys(TIMES, "ns"), "memory per rank": "bytes"},
)


def _front_table(
    name: str, found: Sequence[Prediction], told: Told, named: UnitNames
) -> Component:
    rows = [_row(HEADS, one, memory_cost(told, one), named) for one in found]
    heads = html.Thead(html.Tr([head_cell(column) for column in HEADS]))
    table = html.Table([heads, html.Tbody(rows)], id=name, className="data")
    return html.Div(table, className="scroll")


def _row(
    heads: Sequence[Column], found: Prediction, cost: int | None, named: UnitNames
) -> Component:
    button = html.Button(visible(found.plan.words(named)), className="choice")
    chosen = with_data(button, plan=setting(found.plan, named))
    cells = [
        Cell(text=ms(found.step_ns), value=found.step_ns),
        Cell(text=ms(found.error_ns), value=found.error_ns),
        Cell(text=ms(found.gain_ns), value=found.gain_ns),
        Cell(text=bytes_change(cost), value=cost),
    ]
    others = zip(heads[1:], cells, strict=True)
    assumed = [
        html.Span(f"Assumed: {visible(named.words(line))}.", className="assumed")
        for line in found.assumptions
    ]
    change = html.Td([chosen, *assumed], className="words")
    return html.Tr([change, *[table_cell(*each) for each in others]])


def trials_part(folder: Path, theme: str, named: UnitNames) -> list[Component]:
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
        words += f" Kept: {visible(named.words(kept[-1]))}."
    return [
        html.H2("Tuned while it trains"),
        html.P(words, className="faint"),
        html.Div(
            plot(trial_points(ranking, trials, theme, named)), className="plan-front"
        ),
    ]
