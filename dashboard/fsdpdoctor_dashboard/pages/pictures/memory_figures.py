"""One step of one rank's memory: what is held, how much fits, which units are whole.

Both pictures share one axis of time: who zooms one zooms the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.quantities import GIB, KIB, MIB, MS, size
from fsdpdoctor.renderers.formatting import shorten, visible
from fsdpdoctor.renderers.palette import SERIES, series_colours
from fsdpdoctor.renderers.reading.unit_names import UnitNames
from fsdpdoctor.report.memory_peak import MemoryPeak
from fsdpdoctor.schema import UNKNOWN, MemorySamples
from fsdpdoctor_dashboard.pages.pictures.figures import (
    from_nought,
    name_room,
    styled,
)
from fsdpdoctor_dashboard.pages.pictures.unit_map import extent


class Curve(NamedTuple):
    """A memory curve: what it shows, and its colour."""

    words: str
    colour: str


CURVES = {
    "allocated_bytes": Curve("allocated", SERIES["forward"]),
    "reserved_bytes": Curve("reserved by the allocator", SERIES["optimizer"]),
    "unsharded_bytes": Curve("unsharded parameters", SERIES["unsharded"]),
    "rss_bytes": Curve("resident memory of the whole process", SERIES["input"]),
}
"""By the column of `MemorySamples`."""

LONGEST_LABEL, MODEL = 32, 24
"""Characters of a unit's name beside its windows, and of its model's."""
MOST_UNITS = 120
"""Rows of the window chart; more would be thinner than a line."""
ROOM = 4.0
"""Times the highest sample: a capacity further above would press all curves flat."""
ROW_HEIGHT = 17
CURVES_HEIGHT = 260


def memory_step(
    rank: RankMeasures,
    step: int,
    peak: MemoryPeak | None,
    theme: str,
    named: UnitNames,
) -> go.Figure:
    """Above what is held, as a stack against the device's memory; below the windows of
    units. The two are one figure, so that a moment stands under itself.
    """
    rows = rank.windows.rows(rank.windows.step == step)
    names = curves_of(rank, step)
    units = list(dict.fromkeys(rows.unit[np.argsort(rows.start_ns)].tolist()))
    units = units[:MOST_UNITS]
    labels = {unit: _label(rank, unit, named) for unit in units}
    below = max(60, ROW_HEIGHT * len(units)) if units else 0
    heights = [h for h in (CURVES_HEIGHT if names else 0, below) if h]
    figure = make_subplots(
        rows=len(heights),
        cols=1,
        shared_xaxes=True,
        row_heights=heights,
        vertical_spacing=min(0.1, 34 / sum(heights)),
    )
    begin, length = extent(rank, step)
    if names:
        _curves(figure, rank, step, names)
        if peak is not None:
            unit = _unit_of(rank, step, names)[0]
            _peak(figure, peak, begin, unit, series_colours(theme)["sync"])
    if units:
        _windows(figure, rank, labels, len(heights), (step, begin))
    figure.update_xaxes(range=[0, length / MS])
    figure.update_xaxes(title="time into the step, ms", row=len(heights), col=1)
    figure.update_layout(hovermode="x unified" if names else "closest")
    styled(figure, theme, sum(heights) + 110, legend=bool(names))
    return figure.update_layout(margin_l=name_room(labels.values()))


def _curves(figure: go.Figure, rank: RankMeasures, step: int, names: list[str]) -> None:
    samples, (begin, _) = samples_of(rank, step), extent(rank, step)
    unit, unit_name = _unit_of(rank, step, names)
    stacked = {"allocated_bytes", "unsharded_bytes"} <= set(names)
    shown = _shown(names)
    for name in shown:
        values = getattr(samples, name)
        known = values != UNKNOWN
        curve = CURVES[name]
        words, heights = curve.words, values
        group: dict[str, object] = {}
        if stacked and name in ("allocated_bytes", "unsharded_bytes"):
            known = (samples.allocated_bytes != UNKNOWN) & (
                samples.unsharded_bytes != UNKNOWN
            )
            if name == "allocated_bytes":
                heights = values - samples.unsharded_bytes
                words = "the rest that is allocated"
            group = {"stackgroup": "held"}
        figure.add_scatter(
            x=(samples.time_ns[known] - begin) / MS,
            y=heights[known] / unit,
            mode="lines",
            line={"shape": "hv", "color": curve.colour, "width": 1.6},
            name=words,
            hovertemplate=f"%{{y:.4g}} {unit_name} {words}<extra></extra>",
            row=1,
            col=1,
            **group,
        )
    capacity = rank.header.device_bytes
    most = max(int(getattr(samples, name).max()) for name in shown)
    drawn = 0 < capacity <= ROOM * most
    top = max(most, capacity) if drawn else most
    figure.update_yaxes(title=unit_name, range=from_nought(top / unit), row=1, col=1)
    if drawn:
        figure.add_hline(
            y=capacity / unit,
            line={"dash": "dash", "color": "#d5421e", "width": 1.4},
            annotation_text=f"the device has {size(capacity)}",
            row=1,
            col=1,
        )


def _shown(names: list[str]) -> list[str]:
    """The device's curves, what is gathered at the bottom of the stack; the process's
    only where there is no other: its scale is another.
    """
    device = [name for name in names if name != "rss_bytes"]
    return sorted(device, key=lambda name: name != "unsharded_bytes") or names


def _unit_of(rank: RankMeasures, step: int, names: list[str]) -> tuple[int, str]:
    shown = _shown(names)
    samples = samples_of(rank, step)
    return _byte_unit(max(int(getattr(samples, name).max()) for name in shown))


def _peak(
    figure: go.Figure, peak: MemoryPeak, begin: int, unit: int, colour: str
) -> None:
    figure.add_scatter(
        x=[(peak.time_ns - begin) / MS],
        y=[peak.bytes / unit],
        mode="markers",
        marker={"symbol": "triangle-down", "size": 11, "color": colour},
        name="peak",
        hovertemplate=f"peak: {size(peak.bytes)}<extra></extra>",
        row=1,
        col=1,
    )


def _windows(
    figure: go.Figure,
    rank: RankMeasures,
    labels: Mapping[int, str],
    row: int,
    at: tuple[int, int],
) -> None:
    step, begin = at
    rows = rank.windows.rows(rank.windows.step == step)
    rows = rows.rows(np.isin(rows.unit, [*labels]))
    figure.add_bar(
        base=(rows.start_ns - begin) / MS,
        x=(rows.end_ns - rows.start_ns) / MS,
        y=[labels[unit] for unit in rows.unit.tolist()],
        orientation="h",
        marker={"color": SERIES["unsharded"]},
        customdata=[size(count) for count in rows.bytes.tolist()],
        hovertemplate="%{y}: from %{base:.3f} ms, for %{x:.3f} ms, "
        "%{customdata}<extra></extra>",
        showlegend=False,
        row=row,
        col=1,
    )
    figure.update_yaxes(autorange="reversed", type="category", dtick=1, row=row, col=1)


def _label(rank: RankMeasures, unit: int, named: UnitNames) -> str:
    name = rank.unit_name(unit) or "?"
    label = shorten(named.within(name), LONGEST_LABEL)
    model = named.model_of.get(name)
    # Each shortened by itself: a long class would leave nothing of the unit.
    return label if model is None else f"{label} of {shorten(visible(model), MODEL)}"


def _byte_unit(most: int) -> tuple[int, str]:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if most >= unit:
            return unit, name
    return 1, "bytes"


def samples_of(rank: RankMeasures, step: int) -> MemorySamples:
    """Those between a step's begin and end: others would be outside of its picture."""
    begin, length = extent(rank, step)
    time_ns = rank.memory.time_ns
    inside = (time_ns >= begin) & (time_ns <= begin + length)
    return rank.memory.rows((rank.memory_step == step) & inside)


def curves_of(rank: RankMeasures, step: int) -> list[str]:
    """The memory curves that a rank has of a step; nothing but zeros is none."""
    samples = samples_of(rank, step)
    return [name for name in CURVES if (getattr(samples, name) > 0).any()]
