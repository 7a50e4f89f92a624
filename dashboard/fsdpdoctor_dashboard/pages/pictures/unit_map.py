"""The model as a map: area is bytes, colour exposed time, and a slider plays a step.

unit_map.js lights the units that are gathered at the slider's moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil, sqrt

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.quantities import ms, size
from fsdpdoctor.renderers.reading.unit_names import UnitNames, by_model
from fsdpdoctor.report.value import UnitRow
from fsdpdoctor.schema import UNKNOWN
from fsdpdoctor_dashboard.data.rank_tracks import middle_step
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.components import with_data, with_tip
from fsdpdoctor_dashboard.pages.pictures.unit_bars import exposed_ns

MOMENTS = 1000
"""Places of the slider."""
HIGH, LEAST_HIGH = 300, 24
"""Pixels of all maps together, and of the smallest model's, whose names have to fit."""
LEAST_SHARE = 0.05
"""Of the step: what a map of full colour stands for at least. Less is noise."""


def unit_map(run: OpenRun) -> Iterator[Component]:
    """Nothing where no unit's size is known, or no step shows when they are whole."""
    rank = run.measures.ranks[0]
    step = middle_step(rank)
    units = [unit for unit in run.report.units if unit.all_gather_bytes]
    if step is None or not units or not (rank.windows.step == step).any():
        return
    begin, length = extent(rank, step)
    windows = _windows(rank, step, begin)
    most = full_colour_ns([exposed_ns(unit) for unit in units], length)
    models, named = [*by_model(units, run.report.models)], run.named
    what = "The model as a map" if len(models) == 1 else "The models as maps"
    yield html.H2(f"{what}: area is bytes, red what compute waits for")
    maps: list[Component] = []
    for model, mine in models:
        drawn = [_cell(unit, named, windows, most) for unit in mine]
        sizes = [unit.all_gather_bytes or 0 for unit in mine]
        if model is None:
            maps.append(html.Div(_rows(drawn, sizes), className="map"))
            continue
        share = sum(sizes) / sum(unit.all_gather_bytes or 0 for unit in units)
        high = {"height": f"{max(LEAST_HIGH, HIGH * share):.0f}px"}
        maps += [
            html.H3(f"{model}: {size(sum(sizes))}"),
            html.Div(_rows(drawn, sizes), className="map", style=high),
        ]
    slider = dcc.Input(
        type="range",
        min=0,
        max=MOMENTS,
        value=fullest(windows, length),
        step=1,
    )
    label = html.Label([f"Step {step} of rank {rank.rank}, moment: ", slider])
    samples = _samples(rank, step, begin, length)
    tank = [html.Div(html.I(), className="tank")] if samples else []
    yield with_data(
        html.Div(
            [
                html.Div([label, html.Span(role="status")], className="map-tools"),
                *tank,
                *maps,
            ],
            className="unit-map",
        ),
        length=str(length),
        memory=samples,
        most=str(_most(rank)),
    )


def fullest(windows: dict[str, list[str]], length: int) -> int:
    """The slider's place in the middle of the first stretch in which most units are
    whole: where a map begins, something is lit.
    """
    ends = [
        (int(at), number)
        for window in windows.values()
        for each in window
        for at, number in zip(each.split(","), (1, -1), strict=True)
    ]
    most, whole, best = 0, 0, (0, length)
    ordered = sorted(ends)
    for (at, number), (until, _) in pairwise([*ordered, (length, 0)]):
        whole += number
        if whole > most and until > at:
            most, best = whole, (at, until)
    return round(MOMENTS * sum(best) / 2 / max(length, 1))


def full_colour_ns(exposed: Sequence[int], step_ns: int) -> float:
    """What a cell of full colour stands for: the most exposed unit's time, and never so
    little that a map full of it would be a small part of the step.
    """
    return max(*exposed, 0, LEAST_SHARE * step_ns / len(exposed)) or 1


def extent(rank: RankMeasures, step: int) -> tuple[int, int]:
    """When a step began, and how long it took."""
    record = int(np.flatnonzero(rank.steps.step == step)[0])
    return int(rank.steps.start_ns[record]), int(rank.steps.duration_ns[record])


def strips(sizes: Sequence[int]) -> list[list[int]]:
    """Places of sizes in rows of about equal wholes, in their order: a map's rows."""
    rows = max(1, ceil(sqrt(len(sizes)) / 2))
    share = sum(sizes) / rows
    made: list[list[int]] = [[]]
    whole = 0
    for at, count in enumerate(sizes):
        if made[-1] and whole + count / 2 > share * len(made):
            made.append([])
        made[-1].append(at)
        whole += count
    return made


def _rows(cells: Sequence[Component], sizes: Sequence[int]) -> list[Component]:
    """Cells in rows, each as wide as its part of its row, and rows as high as theirs of
    the whole.
    """
    made: list[Component] = []
    for row in strips(sizes):
        part = sum(sizes[at] for at in row)
        if not part:
            continue
        for at in row:
            width = {"width": f"{100 * sizes[at] / part:.3f}%"}
            setattr(cells[at], "style", width)  # noqa: B010
        high = {"height": f"{100 * part / sum(sizes):.3f}%"}
        made.append(
            html.Div([cells[at] for at in row], className="map-row", style=high)
        )
    return made


def _cell(
    unit: UnitRow, named: UnitNames, windows: dict[str, list[str]], most: float
) -> Component:
    name, waits = named.within(unit.unit), exposed_ns(unit)
    gathered = size(unit.all_gather_bytes or 0)
    said = f"{named(unit.unit)}: {gathered}, exposed {ms(waits)} per step"
    cell = html.Div(
        [
            html.I(style={"opacity": f"{0.85 * waits / most:.3f}"}),
            html.Span(name, title=name),
        ],
        className="map-unit",
    )
    opened = ";".join(windows.get(unit.unit, ()))
    return with_data(with_tip(cell, said), open=opened)


def _windows(rank: RankMeasures, step: int, begin: int) -> dict[str, list[str]]:
    """From and until when each unit is whole, from the step's begin on."""
    rows = rank.windows.rows(rank.windows.step == step)
    found: dict[str, list[str]] = {}
    for unit, start, end in zip(
        rows.unit.tolist(), rows.start_ns.tolist(), rows.end_ns.tolist(), strict=True
    ):
        name = rank.unit_name(unit)
        if name is not None:
            found.setdefault(name, []).append(f"{start - begin},{end - begin}")
    return found


def _samples(rank: RankMeasures, step: int, begin: int, length: int) -> str:
    """Allocated memory, or else that of gathered parameters: moment and bytes."""
    memory = rank.memory
    time_ns = memory.time_ns - begin
    inside = (rank.memory_step == step) & (time_ns >= 0) & (time_ns <= length)
    for values in (memory.allocated_bytes, memory.unsharded_bytes):
        known = inside & (values != UNKNOWN)
        if known.any():
            pairs = zip(time_ns[known].tolist(), values[known].tolist(), strict=True)
            return ";".join(f"{at},{count}" for at, count in pairs)
    return ""


def _most(rank: RankMeasures) -> int:
    """What the tank holds: the device's memory where it is known."""
    return max(rank.header.device_bytes, 0)
