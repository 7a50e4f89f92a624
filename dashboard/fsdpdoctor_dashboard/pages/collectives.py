"""Collectives: size against bandwidth, and how long each kind takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.quantities import NOT_MEASURED, ms, percent
from fsdpdoctor.renderers.formatting import ranges, visible
from fsdpdoctor.renderers.tables import Cell
from fsdpdoctor.report.value import CollectiveRow, OtherCollectiveRow
from fsdpdoctor_dashboard.data.kept.collective_kinds import KindTimes
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.components import (
    PER_STEP,
    Context,
    byte_words,
    columns,
    data_table,
    ns_words,
    number_cells,
    plot,
    run_page,
    with_terms,
)
from fsdpdoctor_dashboard.pages.pictures import collective_figures as figures


def page(context: Context) -> Component:
    """Each run's collectives."""
    return run_page(context, "Collectives", lambda n, run: _of(context, n, run))


def _of(context: Context, name: str, run: OpenRun) -> list[Component]:
    times = run.sketches.sizes
    if not times:
        return [html.P("Cannot tell: the run has no collective whose end was seen.")]
    kinds = run.sketches.kinds
    shown: list[Component] = [
        html.H2("How long they take, by size"),
        html.P(
            "A box holds the middle half of the calls, its line is the median, and "
            "nine of ten lie between the whiskers' ends.",
            className="faint",
        ),
        plot(figures.size_times(times, context.theme)),
    ]
    if not kinds:
        return [*shown, *_others(name, run)]
    return [
        html.H2("Size against bandwidth"),
        *_bandwidth(context, run, kinds),
        *shown,
        html.H2("The line through the sizes of each kind"),
        _kinds(f"{name}-kinds", run, kinds),
        html.H2("FSDP2's, by group, kind and size"),
        _table(name, run),
        *_others(name, run),
    ]


def _others(name: str, run: OpenRun) -> list[Component]:
    """What ran beside FSDP2: all-to-all, norms, metrics, objects."""
    rows = run.report.other_collectives
    if not rows:
        return []
    exposed = number_cells(
        [row.exposed_ns_per_step for row in rows],
        [ns_words(row.exposed_ns_per_step) for row in rows],
    )
    parts = [
        [Cell(text=visible(row.where or "the source does not say")) for row in rows],
        [Cell(text=_called(row)) for row in rows],
        [Cell(text=visible(row.group or NOT_NAMED)) for row in rows],
        [Cell(text=row.in_) for row in rows],
        [
            Cell(text=f"{row.count_per_step:.3g}", value=row.count_per_step)
            for row in rows
        ],
        [Cell(text=byte_words(row.bytes), value=row.bytes) for row in rows],
        [Cell(text=ns_words(row.ns_per_step), value=row.ns_per_step) for row in rows],
        exposed,
    ]
    heads = columns(
        *("called at", "kind", "group", "ran in", "count per step", "mean size"),
        *("time per step", EXPOSED_PER_STEP),
        left=("called at", "kind", "group", "ran in"),
        exposed=(EXPOSED_PER_STEP,),
        units={"mean size": "bytes", "time per step": "ns", EXPOSED_PER_STEP: "ns"},
    )
    all_ns = run.report.budget_ns_per_step.get("exposed_other_communication")
    about = f", compute waits {ms(all_ns)} per step for them" if all_ns else ""
    return [
        html.H2(f"Outside FSDP2{about}"),
        html.P(with_terms(PER_STEP), className="faint"),
        data_table(f"{name}-others", heads, zip(*parts, strict=True)),
    ]


EXPOSED_PER_STEP = "exposed per step"


def _called(row: OtherCollectiveRow) -> str:
    kind = row.kind.replace("_", "-")
    return f"{kind} ({visible(row.called)})" if row.called else visible(kind)


def _bandwidth(
    context: Context, run: OpenRun, kinds: Sequence[KindTimes]
) -> list[Component]:
    figure = figures.bandwidth(run.report, kinds, context.network, context.theme)
    if figure is None:
        return [html.P("Cannot tell: no size or no duration was recorded.")]
    notes = []
    if figures.rates_of(run.report) is figures.ALGORITHM:
        notes.append(
            "Bytes by time: bus bandwidth needs the number of ranks of each group, "
            "which the source does not say."
        )
    if not all(kind.matched for kind in kinds):
        notes.append(
            "Ranks could not be matched: times hold the wait for the last rank."
        )
    else:
        notes.append("Lines and peaks are fitted to the time on the wire.")
    return [
        html.P([" ".join(notes), " ", *_against_link(context, run)], className="faint"),
        plot(figure),
    ]


def _against_link(context: Context, run: OpenRun) -> list[Component | str]:
    """What the run reached of its network's peak."""
    link = context.network
    if link is None:
        return [html.Code("view --link ib400"), " draws what a link can reach."]
    reached = [row.wire_busbw_gbps or row.busbw_gbps for row in run.report.collectives]
    most = max((rate for rate in reached if rate is not None), default=None)
    if most is None:
        return []
    share = percent(most * 1e9 / link.bytes_per_second)
    peak = f"{visible(link.name)} can reach ({link.bytes_per_second / 1e9:.3g} GB/s)"
    return [f"The highest seen is {most:.3g} GB/s: {share} of what {peak}."]


BY_ORDER = "by_order"
"""The role of collectives whose groups a trace does not name."""
NOT_NAMED = "group not named"


def _kinds(name: str, run: OpenRun, kinds: Sequence[KindTimes]) -> Component:
    rows = []
    for kind in kinds:
        times = (kind.median_ns, kind.p99_ns, kind.longest_ns)
        peak = figures.peak_gbps(kind, run.report)
        rows.append(
            [
                Cell(text=kind.kind.label),
                Cell(text=f"{kind.count:,}", value=kind.count),
                *[Cell(text=ns_words(ns), value=ns) for ns in times],
                Cell(text=figures.fit_words(kind, run.report)),
                Cell(text="-" if peak is None else f"{peak:.3g} GB/s", value=peak),
            ]
        )
    timed = ("median time", "p99", "longest")
    heads = columns(
        *("kind", "count", *timed, "fitted line", "fitted peak"),
        left=("kind", "fitted line"),
        units=dict.fromkeys(timed, "ns") | {"fitted peak": "GB/s"},
    )
    return data_table(name, heads, rows)


def _table(name: str, run: OpenRun) -> Component:
    rows = []
    members = run.sketches.members
    for row in run.report.collectives:
        known = NOT_NAMED if row.role == BY_ORDER else row.role or row.group
        role = f"{known or NOT_NAMED}{_ranks(row, members)}"
        rows.append(
            [
                Cell(text=role),
                Cell(text=row.kind.replace("_", "-")),
                Cell(text=byte_words(row.bytes), value=row.bytes),
                Cell(text=f"{row.count:,}", value=row.count),
                Cell(text=ns_words(row.median_ns), value=row.median_ns),
                Cell(text=ns_words(row.median_wire_ns), value=row.median_wire_ns),
                _rate(row.busbw_gbps),
                _rate(row.wire_busbw_gbps),
            ]
        )
    times, rates = ("median time", "median on the wire"), ("busbw", "busbw on the wire")
    heads = columns(
        *("group", "kind", "size", "count", *times, *rates),
        left=("group", "kind"),
        units={"size": "bytes"}
        | dict.fromkeys(times, "ns")
        | dict.fromkeys(rates, "GB/s"),
    )
    return data_table(name, heads, rows)


def _ranks(row: CollectiveRow, members: Mapping[str, tuple[int, ...]]) -> str:
    if found := members.get(row.group or ""):
        return f", ranks {ranges(found)}"
    return f", {row.group_size} ranks" if row.group_size else ""


def _rate(gbps: float | None) -> Cell:
    words = NOT_MEASURED if gbps is None else f"{gbps:.3g} GB/s"
    return Cell(text=words, value=gbps)
