"""Collectives: size against bus bandwidth, and how long each kind takes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from fsdpdoctor.quantities import NOT_MEASURED
from fsdpdoctor.simulate.fit import Fit
from fsdpdoctor_dashboard import figures
from fsdpdoctor_dashboard.library import OpenRun
from fsdpdoctor_dashboard.pages.parts import (
    Cell,
    Context,
    byte_words,
    data_table,
    ns_words,
    side_by_side,
)


def page(context: Context) -> Component:
    """Each run's collectives, two runs beside each other."""
    return html.Main(
        [
            html.H1("Collectives"),
            side_by_side(
                context,
                [
                    html.Div(_of(f"collectives-{at}", run, context.theme))
                    for at, run in enumerate(context.runs)
                ],
            ),
        ]
    )


def _of(name: str, run: OpenRun, theme: str) -> list[Component]:
    kinds = figures.kinds_of(run.measures)
    if not kinds:
        return [html.P("No collective whose end and size were seen.")]
    return [
        html.H2("Size against bus bandwidth"),
        html.P(
            "A collective's time includes its wait for the last rank; the wire's own "
            "figures are in the table.",
            className="faint",
        ),
        dcc.Graph(figure=figures.bandwidth(run.report, kinds, theme)),
        html.H2("How long they take"),
        dcc.Graph(figure=figures.latencies(kinds, theme)),
        _kinds(f"{name}-kinds", kinds),
        html.H2("By group, kind and size"),
        _table(name, run),
    ]


class _Times(NamedTuple):
    median: float
    p99: float
    most: float


def _kinds(name: str, kinds: list[figures.KindTimes]) -> Component:
    rows = []
    for kind, collectives, fit in kinds:
        times = _Times(*np.percentile(collectives.duration_ns, (50, 99, 100)).tolist())
        fitted = "one size only" if fit is None or fit.sizes < 2 else _fit_words(fit)
        rows.append(
            [
                Cell(words=kind.name.lower().replace("_", "-"), kind="words"),
                Cell(words=f"{len(collectives):,}", value=len(collectives)),
                *[Cell(words=ns_words(ns), value=ns) for ns in times],
                Cell(words=fitted, kind="words"),
            ]
        )
    heads = ["kind", "count", "median", "p99", "longest", "fitted"]
    return data_table(name, heads, rows)


def _fit_words(fit: Fit) -> str:
    rate = fit.wire.bytes_per_second / 1e9
    return (
        f"{ns_words(fit.wire.latency_ns)} + size / {rate:.3g} GB/s, "
        f"off by {fit.residual_share * 100:.1f} % (median)"
    )


def _table(name: str, run: OpenRun) -> Component:
    rows = []
    for row in run.report.collectives:
        ranks = f", {row.group_size} ranks" if row.group_size else ""
        role = f"{row.role or row.group or 'unknown group'}{ranks}"
        rows.append(
            [
                Cell(words=role, kind="words"),
                Cell(words=row.kind.replace("_", "-"), kind="words"),
                Cell(words=byte_words(row.bytes), value=row.bytes),
                Cell(words=f"{row.count:,}", value=row.count),
                Cell(words=ns_words(row.median_ns), value=row.median_ns),
                Cell(words=ns_words(row.median_wire_ns), value=row.median_wire_ns),
                _rate(row.busbw_gbps),
                _rate(row.wire_busbw_gbps),
            ]
        )
    heads = ["group", "kind", "size", "count", "median", "on the wire"]
    heads += ["bus bandwidth", "of the wire"]
    return data_table(name, heads, rows)


def _rate(gbps: float | None) -> Cell:
    words = NOT_MEASURED if gbps is None else f"{gbps:.3g} GB/s"
    return Cell(words=words, value=gbps)
