"""What collectives took: the line through their sizes, and the figures of both."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from fsdpdoctor.network import Link
from fsdpdoctor.quantities import MS, duration, size
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.renderers.palette import inks, series_colours
from fsdpdoctor.report.collective_times import SizeTimes
from fsdpdoctor.report.value import CollectiveRow, Report
from fsdpdoctor.simulate.calibration.comm_cost import FREE
from fsdpdoctor_dashboard.data.kept.collective_kinds import (
    FEWEST_SIZES,
    KindTimes,
    kinds_of,
)
from fsdpdoctor_dashboard.pages.pictures.figures import from_nought, name_room, styled

__all__ = [
    "KindTimes",
    "bandwidth",
    "fit_words",
    "kinds_of",
    "peak_gbps",
    "rates_of",
    "size_times",
]

MOST_TICKS = 7
WHOLE = re.compile(r"\.0+ ")
"""What a tick's size need not have: ticks are whole powers of two."""
PEAK_IN_SIGHT = 3.0
"""A peak further above the highest point would press all points to the floor: it is
written and not drawn."""


class Rates(NamedTuple):
    """Which bandwidth a run's rows have: the bus's needs the size of the group."""

    words: str
    whole: Callable[[CollectiveRow], float | None]  # with the wait for the last rank
    wire: Callable[[CollectiveRow], float | None]

    def factor(self, row: CollectiveRow) -> float:
        """What bytes per second of the algorithm are multiplied by."""
        whole = self.whole(row)
        return whole / row.algbw_gbps if whole and row.algbw_gbps else 1.0


BUS = Rates("bus bandwidth", lambda r: r.busbw_gbps, lambda r: r.wire_busbw_gbps)
ALGORITHM = Rates("bytes by time", lambda r: r.algbw_gbps, lambda r: _wire_rate(r))


def _wire_rate(row: CollectiveRow) -> float | None:
    return row.bytes / row.median_wire_ns if row.bytes and row.median_wire_ns else None


def rates_of(report: Report) -> Rates | None:
    """The bus's bandwidth where it is known, else the plain one; None: neither."""
    for rates in (BUS, ALGORITHM):
        if any(row.bytes and rates.whole(row) for row in report.collectives):
            return rates
    return None


def peak_gbps(kind: KindTimes, report: Report) -> float | None:
    """What the fitted line comes to for large sizes, None where there is no line, or
    one that lies below what was reached.
    """
    rates = rates_of(report)
    row = next((r for r in report.collectives if r.kind == kind.name), None)
    if rates is None or row is None or not kind.has_line:
        return None
    peak = kind.fit.wire.bytes_per_second / 1e9 * rates.factor(row)
    return None if peak < reached_gbps(kind, report, rates) else peak


def reached_gbps(kind: KindTimes, report: Report, rates: Rates) -> float:
    """The highest rate of a kind that was seen."""
    return max(
        max(rates.whole(row) or 0.0, rates.wire(row) or 0.0)
        for row in report.collectives
        if row.kind == kind.name
    )


def bandwidth(
    report: Report, kinds: Sequence[KindTimes], link: Link | None, theme: str
) -> go.Figure | None:
    """Size against bandwidth, the fitted line and its peak; None: nothing to show."""
    rates = rates_of(report)
    if rates is None:
        return None
    figure, colours = go.Figure(), series_colours(theme)
    rows = [row for row in report.collectives if row.bytes]
    for kind in kinds:
        mine = [row for row in rows if row.kind == kind.name]
        _points(figure, mine, rates, colours[kind.name])
    most = max(max(rates.whole(row) or 0.0, rates.wire(row) or 0.0) for row in rows)
    levels = [most]
    sizes = sorted({row.bytes or 1 for row in rows})
    for kind in kinds:
        row = next((r for r in rows if r.kind == kind.name), None)
        peak = peak_gbps(kind, report)
        if row is not None and peak is not None:
            _line(figure, kind, rates.factor(row), sizes, colours[kind.name])
            if peak <= PEAK_IN_SIGHT * most:
                words = f"fitted peak of {kind.name.replace('_', '-')}s"
                levels.append(peak)
                _level(figure, peak, words, colours[kind.name], theme)
    if link is not None:
        peak = link.bytes_per_second / 1e9
        if peak <= PEAK_IN_SIGHT * most:
            _level(figure, peak, f"link {visible(link.name)}", "#888888", theme)
            levels.append(peak)
    _size_axis(figure, sizes)
    figure.update_yaxes(title=f"{rates.words}, GB/s", range=from_nought(max(levels)))
    return styled(figure, theme, 380, legend=True)


def _points(
    figure: go.Figure, rows: Sequence[CollectiveRow], rates: Rates, colour: str
) -> None:
    for value, words, symbol in (
        (rates.wire, "on the wire", "circle"),
        (rates.whole, "with waiting for the last rank", "circle-open"),
    ):
        shown = [row for row in rows if value(row)]
        if not shown:
            continue
        name = shown[0].kind.replace("_", "-")
        figure.add_scatter(
            x=[row.bytes for row in shown],
            y=[value(row) for row in shown],
            mode="markers",
            name=f"{name}, {words}",
            marker={
                "color": colour,
                "size": 11,
                "symbol": symbol,
                "line": {"width": 2},
            },
            text=[
                f"{size(row.bytes or 0)}, {row.count:,} on {visible(row.group or '?')}"
                for row in shown
            ],
            hovertemplate="%{y:.3g} GB/s " + words + "<br>%{text}<extra></extra>",
        )


def _line(
    figure: go.Figure,
    kind: KindTimes,
    factor: float,
    sizes: Sequence[int],
    colour: str,
) -> None:
    wire = kind.fit.wire
    line = np.geomspace(min(sizes) / 1.3, max(sizes) * 1.3, 60)
    taken = wire.latency_ns + line / wire.bytes_per_second * 1e9
    figure.add_scatter(
        x=line,
        y=line / taken * factor,
        mode="lines",
        line={"color": colour, "width": 1.5},
        name=f"{kind.name.replace('_', '-')}, fitted",
        hoverinfo="skip",
    )


def _level(figure: go.Figure, gbps: float, words: str, colour: str, theme: str) -> None:
    """A level line; its words lie on the ground, so that no other runs through them."""
    figure.add_hline(
        y=gbps, line={"dash": "dash", "color": colour, "width": 1.4}, layer="below"
    )
    figure.add_annotation(
        xref="paper",
        x=0.004,
        xanchor="left",
        y=gbps,
        yanchor="bottom",
        yshift=2,
        text=f"{words}: {gbps:.3g} GB/s",
        showarrow=False,
        font={"size": 11},
        bgcolor=inks(theme)["background"],
        borderpad=1,
    )


def _size_axis(figure: go.Figure, sizes: Sequence[int]) -> None:
    low, high = min(sizes) / 2, max(sizes) * 2
    powers = range(int(np.floor(np.log2(low))), int(np.ceil(np.log2(high))) + 1)
    every = max(1, -(-len(powers) // MOST_TICKS))
    ticks = [2**power for power in powers if power >= 0][::every]
    figure.update_xaxes(
        type="log",
        title="size, of the large side",
        tickvals=ticks,
        ticktext=[WHOLE.sub(" ", size(tick)) for tick in ticks],
        range=[float(np.log10(max(low, 0.5))), float(np.log10(high))],
    )


def size_times(times: Sequence[SizeTimes], theme: str) -> go.Figure:
    """How long the collectives of each kind and size took: a box of its own for each,
    from the analysis's quantiles, so that a browser is not sent every collective.
    """
    figure, colours = go.Figure(), series_colours(theme)
    shown = sorted(times, key=lambda each: -each.ns[2] * each.count)[:MOST_BOXES]
    names = {id(each): box_name(each) for each in times if each in shown}
    for each in times:
        if id(each) not in names:
            continue
        low, first, middle, third, high = (ns / MS for ns in each.ns)
        own = each.fsdp and each.kind in colours
        figure.add_box(
            y=[names[id(each)]],
            lowerfence=[low],
            q1=[first],
            median=[middle],
            q3=[third],
            upperfence=[high],
            orientation="h",
            marker={"color": colours[each.kind if own else "other_comm"]},
            hoverinfo="x+name",
            name=f"{names[id(each)]}: {each.count:,} calls",
        )
    longest = max(each.ns[-1] for each in shown) / MS
    figure.update_xaxes(title="ms", range=from_nought(longest))
    figure.update_yaxes(autorange="reversed", type="category")
    styled(figure, theme, max(150, 90 + 30 * len(names)))
    return figure.update_layout(margin_l=name_room(names.values()))


MOST_BOXES = 24
"""The kinds and sizes that took most; more would not fit a screen."""


def box_name(each: SizeTimes) -> str:
    """What a box is of: kind and size, and that FSDP2 did not issue it."""
    known = "size not known" if each.bytes is None else size(each.bytes)
    others = "" if each.fsdp else ", outside FSDP2"
    return f"{visible(each.kind.replace('_', '-'))} {known}{others}"


def fit_words(kind: KindTimes, report: Report) -> str:
    """The fitted line, or why there is none."""
    wire = kind.fit.wire
    off = f"off by {kind.fit.residual_share * 100:.0f} %"
    if kind.fit.sizes < FEWEST_SIZES:
        what = "two sizes" if kind.fit.sizes > 1 else "one size"
        return f"no line: all are of {what}"
    if wire.bytes_per_second >= FREE:
        return "no line: larger ones did not take longer"
    if not kind.has_line:
        return f"no line: it would be {off}"
    if rates_of(report) is not None and peak_gbps(kind, report) is None:
        return "no line: faster ones were seen than it would allow"
    return (
        f"{duration(wire.latency_ns)} + size / {wire.bytes_per_second / 1e9:.3g} GB/s, "
        f"{off}"
    )
