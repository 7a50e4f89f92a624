"""Measures and reports -> plotly figures. Pure functions.

Colours are the timeline's, vermillion is for exposed time alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from fsdpdoctor.intervals import Int64s
from fsdpdoctor.measures import Measures
from fsdpdoctor.quantities import MS, US
from fsdpdoctor.rank_measures import RankMeasures
from fsdpdoctor.renderers.words import shorten, visible
from fsdpdoctor.report.value import Report
from fsdpdoctor.schema import UNKNOWN, Flag, Kind
from fsdpdoctor.simulate.fit import Fit, fit_wire
from fsdpdoctor.simulate.predict import Prediction
from fsdpdoctor.timeline import COLLECTIVE_KINDS, Collectives

KIND_COLOURS = {
    "all_gather": "#e8b23a",
    "reduce_scatter": "#009e73",
    "all_reduce": "#7a6a4f",
}
CURVE_COLOURS = {
    "allocated_bytes": "#0072b2",
    "reserved_bytes": "#7f8790",
    "unsharded_bytes": "#8e7cc3",
    "rss_bytes": "#2f7f86",
}
LONGEST_LABEL = 32
MOST_UNITS = 120
"""Rows of the window chart; more would be thinner than a line."""


def _styled(figure: go.Figure, theme: str, height: int) -> go.Figure:
    dark = theme == "dark"
    grid = "#2a313a" if dark else "#e6eaee"
    figure.update_layout(
        template="plotly_dark" if dark else "plotly_white",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        height=height,
        margin={"l": 70, "r": 24, "t": 44, "b": 52},
        font={"family": "system-ui, sans-serif", "size": 12},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hoverlabel={"namelength": -1},
    )
    figure.update_xaxes(gridcolor=grid, zerolinecolor=grid, automargin=True)
    figure.update_yaxes(gridcolor=grid, zerolinecolor=grid, automargin=True)
    return figure


def collectives_of(measures: Measures, kind: Kind) -> Collectives:
    """All ranks' judged collectives of one kind whose ends were seen."""
    parts = []
    for rank in measures.ranks:
        rows = rank.collectives.rows(rank.in_judged(rank.collectives.step))
        seen = rows.flags & Flag.END_ESTIMATED == 0
        parts.append(rows.rows((rows.kind == kind) & seen & (rows.bytes != UNKNOWN)))
    return Collectives.concat(parts)


class KindTimes(NamedTuple):
    """The collectives of one kind: what they took, and the line through them."""

    kind: Kind
    rows: Collectives
    fit: Fit | None  # None where there is none to fit


def kinds_of(measures: Measures) -> list[KindTimes]:
    """Each kind that the run has."""
    found = []
    for kind in COLLECTIVE_KINDS:
        rows = collectives_of(measures, kind)
        if len(rows):
            fit = fit_wire(rows, rows.duration_ns)
            found.append(KindTimes(kind, rows, fit))
    return found


def bandwidth(report: Report, kinds: Sequence[KindTimes], theme: str) -> go.Figure:
    """Size against bus bandwidth, with the fitted line of each kind."""
    figure = go.Figure()
    for row_kind in KIND_COLOURS:
        rows = [
            row
            for row in report.collectives
            if row.kind == row_kind and row.bytes and row.busbw_gbps is not None
        ]
        if not rows:
            continue
        name = row_kind.replace("_", "-")
        colour = KIND_COLOURS[row_kind]
        figure.add_scatter(
            x=[row.bytes for row in rows],
            y=[row.busbw_gbps for row in rows],
            mode="markers",
            name=name,
            marker={"color": colour, "size": 10, "line": {"width": 1, "color": "#555"}},
            text=[f"{row.count:,} on {visible(row.group or '?')}" for row in rows],
            hovertemplate="%{x:.4s}B, %{y:.3g} GB/s<br>%{text}",
        )
        fit = next((k.fit for k in kinds if k.kind.name.lower() == row_kind), None)
        factor = _bus_share(rows[0].busbw_gbps, rows[0].algbw_gbps)
        if fit is not None and fit.sizes > 1 and factor is not None:
            _fitted(figure, fit, factor, [row.bytes or 1 for row in rows], colour)
    most = max((row.busbw_gbps or 0 for row in report.collectives), default=0)
    if most:
        figure.add_hline(
            y=most,
            line={"dash": "dot", "color": "#888", "width": 1},
            annotation={"text": f"highest seen {most:.3g} GB/s", "font": {"size": 10}},
        )
    figure.update_xaxes(
        type="log", title="bytes of the large side", exponentformat="SI"
    )
    figure.update_yaxes(title="bus bandwidth, GB/s", rangemode="tozero")
    return _styled(figure, theme, 380)


def _bus_share(bus: float | None, algorithm: float | None) -> float | None:
    return bus / algorithm if bus is not None and algorithm else None


def _fitted(
    figure: go.Figure, fit: Fit, factor: float, sizes: Sequence[int], colour: str
) -> None:
    line = np.geomspace(min(sizes), max(sizes), 60)
    taken = fit.wire.latency_ns + line / fit.wire.bytes_per_second * 1e9
    figure.add_scatter(
        x=line,
        y=line / taken * factor,
        mode="lines",
        line={"color": colour, "width": 1.5},
        name=f"fit: {fit.wire.latency_ns / US:.3g} us + size / "
        f"{fit.wire.bytes_per_second / 1e9:.3g} GB/s",
        hoverinfo="skip",
    )


def latencies(kinds: Sequence[KindTimes], theme: str) -> go.Figure:
    """How long the collectives of each kind took."""
    figure = go.Figure()
    longest = max(int(rows.duration_ns.max()) for _, rows, _ in kinds) / MS
    edges = np.linspace(0, longest or 1, 81)
    for kind, rows, _ in kinds:
        name = kind.name.lower()
        # Binned here: a browser is not sent every collective of the run.
        counts, _ = np.histogram(rows.duration_ns / MS, bins=edges)
        figure.add_bar(
            x=(edges[:-1] + edges[1:]) / 2,
            y=counts,
            width=np.diff(edges),
            name=name.replace("_", "-"),
            marker={"color": KIND_COLOURS[name], "opacity": 0.75},
            hovertemplate="%{x:.3g} ms: %{y}",
        )
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title="milliseconds", rangemode="tozero")
    figure.update_yaxes(title="collectives")
    return _styled(figure, theme, 340)


def wait_matrix(
    ranks: Sequence[int], waits: Mapping[int, Mapping[int, int]], steps: int, theme: str
) -> go.Figure:
    """Who waited for whom: row waits, column is the last to arrive."""
    values = [
        [waits[rank].get(other, 0) / steps / MS for other in ranks] for rank in ranks
    ]
    names = [str(rank) for rank in ranks]
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=names,
            y=names,
            colorscale=_scale(theme),
            colorbar={"title": "ms per step"},
            hovertemplate="rank %{y} waits %{z:.3g} ms per step for rank %{x}"
            "<extra></extra>",
        )
    )
    figure.update_xaxes(title="last to arrive", type="category")
    figure.update_yaxes(title="waiting rank", type="category", autorange="reversed")
    return _styled(figure, theme, 420)


def _scale(theme: str) -> list[list[object]]:
    """One hue from the ground to its darkest: readable by every eye and in print."""
    if theme == "dark":
        return [[0, "#10161d"], [0.5, "#2b6a96"], [1, "#a9dcff"]]
    return [[0, "#f4f8fb"], [0.5, "#6baed6"], [1, "#08306b"]]


def last_arrivals(report: Report, theme: str) -> go.Figure:
    """How often each rank was the last, and how much waiting that caused."""
    ranks = [row for row in report.ranks if row.last_arrivals is not None]
    names = [str(row.rank) for row in ranks]
    figure = go.Figure()
    figure.add_bar(
        x=names,
        y=[row.last_arrivals for row in ranks],
        name="times last to arrive",
        marker={"color": "#0072b2"},
    )
    figure.add_scatter(
        x=names,
        y=[(row.wait_caused_ns_per_step or 0) / MS for row in ranks],
        name="waiting caused, ms per step",
        mode="markers",
        marker={"color": "#5e3c99", "symbol": "diamond", "size": 10},
        yaxis="y2",
    )
    figure.update_layout(
        yaxis={"title": "times"},
        yaxis2={
            "title": "ms per step",
            "overlaying": "y",
            "side": "right",
            "rangemode": "tozero",
            "showgrid": False,
        },
    )
    figure.update_xaxes(title="rank", type="category")
    styled = _styled(figure, theme, 360)
    styled.update_layout(margin={"r": 70})
    return styled


def step_heat(measures: Measures, theme: str, *, exposed: bool) -> go.Figure:
    """Rank by step: how long it took, or how long compute stood still in it."""
    steps = sorted({int(s) for rank in measures.ranks for s in rank.steps.step})
    place = {step: at for at, step in enumerate(steps)}
    values = np.full((len(measures.ranks), len(steps)), np.nan)
    for at, rank in enumerate(measures.ranks):
        columns = [place[int(step)] for step in rank.steps.step]
        ns = _exposed_by_step(rank) if exposed else rank.steps.duration_ns
        values[at, columns] = ns / MS
    words = "stood still for" if exposed else "took"
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=steps,
            y=[str(rank.rank) for rank in measures.ranks],
            colorscale=_scale(theme),
            colorbar={"title": "ms"},
            hovertemplate=f"rank %{{y}}, step %{{x}} {words} %{{z:.4g}} ms"
            "<extra></extra>",
        )
    )
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="rank", type="category", autorange="reversed")
    return _styled(figure, theme, max(240, min(700, 120 + 18 * len(measures.ranks))))


def _exposed_by_step(rank: RankMeasures) -> Int64s:
    stalls = rank.stalls
    order = np.argsort(rank.steps.step)
    at = order[np.searchsorted(rank.steps.step[order], stalls.step)]
    totals = np.zeros(len(rank.steps), dtype=np.int64)
    np.add.at(totals, at, stalls.duration_ns)
    return totals


def windows(rank: RankMeasures, step: int, theme: str) -> go.Figure:
    """When each unit was unsharded within a step."""
    rows = rank.windows.rows(rank.windows.step == step)
    record = int(np.flatnonzero(rank.steps.step == step)[0])
    begin = int(rank.steps.start_ns[record])
    order = list(dict.fromkeys(rows.unit[np.argsort(rows.start_ns)].tolist()))
    order = order[:MOST_UNITS]
    names = {
        unit: shorten(visible(rank.unit_name(unit) or "?"), LONGEST_LABEL)
        for unit in order
    }
    shown = np.isin(rows.unit, order)
    units = rows.unit[shown].tolist()
    figure = go.Figure(
        go.Bar(
            base=(rows.start_ns[shown] - begin) / MS,
            x=(rows.end_ns[shown] - rows.start_ns[shown]) / MS,
            y=[names[unit] for unit in units],
            orientation="h",
            marker={"color": "#8e7cc3"},
            customdata=rows.bytes[shown] / (1 << 20),
            hovertemplate="%{y}: from %{base:.3f} ms, for %{x:.3f} ms, "
            "%{customdata:.3g} MiB<extra></extra>",
        )
    )
    figure.update_xaxes(title="milliseconds into the step", side="top")
    figure.update_yaxes(autorange="reversed", type="category", dtick=1)
    return _styled(figure, theme, max(220, 120 + 15 * len(order)))


def memory_curves(rank: RankMeasures, step: int, theme: str) -> go.Figure:
    """Memory over one step, every curve that the rank has."""
    samples = rank.memory.rows(rank.memory_step == step)
    record = int(np.flatnonzero(rank.steps.step == step)[0])
    begin = int(rank.steps.start_ns[record])
    figure = go.Figure()
    for name, colour in CURVE_COLOURS.items():
        values = getattr(samples, name)
        known = values != UNKNOWN
        if not known.any():
            continue
        figure.add_scatter(
            x=(samples.time_ns[known] - begin) / MS,
            y=values[known] / (1 << 20),
            mode="lines",
            line={"shape": "hv", "color": colour, "width": 1.6},
            name=name.removesuffix("_bytes"),
            hovertemplate="%{x:.3f} ms: %{y:.5g} MiB",
        )
    figure.update_xaxes(title="milliseconds into the step")
    figure.update_yaxes(title="MiB", rangemode="tozero")
    return _styled(figure, theme, 340)


def front(found: Sequence[Prediction], measured_ns: int, theme: str) -> go.Figure:
    """Predicted step against memory, each plan with its error bar."""
    figure = go.Figure()
    figure.add_scatter(
        x=[p.memory_cost_bytes / (1 << 20) for p in found],
        y=[p.step_ns / MS for p in found],
        error_y={"type": "data", "array": [p.error_ns / MS for p in found]},
        mode="markers",
        marker={"color": "#0072b2", "size": 9},
        text=[visible(str(p.plan)) for p in found],
        hovertemplate="%{text}<br>%{y:.4g} ms, %{x:+.4g} MiB<extra></extra>",
        name="plans",
    )
    figure.add_scatter(
        x=[0],
        y=[measured_ns / MS],
        mode="markers",
        marker={"color": "#5e3c99", "size": 12, "symbol": "diamond"},
        name="as it was",
        hovertemplate="as it was: %{y:.4g} ms<extra></extra>",
    )
    figure.update_xaxes(title="memory beyond the run's own, MiB per rank")
    figure.update_yaxes(title="step, ms")
    return _styled(figure, theme, 380)
