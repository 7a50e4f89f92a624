"""Units: counts against the expected, bytes, times, exposed time, peak and window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.quantities import ms
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.renderers.reading.outlook import CAUSE_TITLES, known_causes
from fsdpdoctor.renderers.tables import Cell, Column
from fsdpdoctor.report.value import PhaseCounts, UnitRow
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.components import (
    Context,
    byte_words,
    columns,
    data_table,
    ns_words,
    number_cells,
    so_far,
    table_tools,
    with_terms,
)
from fsdpdoctor_dashboard.pages.pictures.unit_bars import longest_ns, unit_bars
from fsdpdoctor_dashboard.pages.pictures.unit_map import unit_map


class Figure(NamedTuple):
    """A figure of a unit: its column's head, its value, and the value in words."""

    head: str
    value: Callable[[UnitRow], int | None]
    words: Callable[[float | None], str]
    bars: bool = False

    @property
    def unit(self) -> str:
        """What its values count."""
        return "ns" if self.words is ns_words else "bytes"


IN_FORWARD, IN_BACKWARD = "exposed in forward", "exposed in backward"

FIGURES = (
    Figure(IN_FORWARD, lambda u: u.exposed_ns.forward, ns_words, True),
    Figure(IN_BACKWARD, lambda u: u.exposed_ns.backward, ns_words, True),
    Figure("by all-gathers", lambda u: u.exposed_ns_by_kind.all_gather, ns_words),
    Figure(
        "by reduce-scatters",
        lambda u: u.exposed_ns_by_kind.reduce_scatter,
        ns_words,
    ),
    Figure("forward compute", lambda u: u.forward_ns, ns_words, True),
    Figure("backward compute", lambda u: u.backward_ns, ns_words, True),
    Figure("bytes gathered", lambda u: u.all_gather_bytes, byte_words),
    Figure("bytes reduced", lambda u: u.reduce_scatter_bytes, byte_words),
    Figure("peak memory", lambda u: u.peak_bytes, byte_words),
    Figure("time unsharded", lambda u: u.unsharded_ns, ns_words),
)
UNITS = {figure.head: figure.unit for figure in FIGURES}
MAIN_CAUSE = Column(title="main cause", left=True, breaks=False)


EXPLAINED = (
    "Times are per step, the mean over judged steps, and own times: what a unit inside "
    "takes is that one's. Counts are per micro-batch, with the expected count where it "
    "differs. The main cause is that of most of the exposed time; point at it for all. "
    "A dash: not measured. A click on a head, or Enter, sorts."
)


def page(context: Context) -> Component:
    """The table; two runs also get the differences of each unit."""
    parts: list[Component] = []
    for at, run in enumerate(context.runs):
        if len(context.runs) > 1:
            parts.append(html.H2(visible(run.id)))
        parts += [*so_far(run), *_table(f"units-{at}", run, context.runs)]
    if len(context.runs) > 1:
        parts = [*_differences(*context.runs[:2]), *parts]
    known = any(run.report.units for run in context.runs)
    return html.Main(
        [
            html.H1("Units"),
            *[html.P(with_terms(EXPLAINED), className="faint")] * known,
            *parts,
        ]
    )


def _table(name: str, run: OpenRun, runs: Sequence[OpenRun]) -> list[Component]:
    units = run.report.units
    if not units:
        return [
            html.P(
                "Cannot tell: the source does not say which FSDP unit its spans "
                "belong to. A recorded run does, and so do traces of fully_shard "
                "models in which torch.profiler recorded the CPU."
            )
        ]
    exposed, others, named = FIGURES[:2], FIGURES[2:], run.named
    longest = max(longest_ns(each.report.units) for each in runs)
    every = [unit for each in runs for unit in each.report.units]
    counts = ("gathers in forward", "gathers in backward", "reduce-scatters")
    heads = (
        *columns("unit", *counts, left=("unit",)),
        *columns(
            IN_FORWARD, IN_BACKWARD, exposed=(IN_FORWARD, IN_BACKWARD), units=UNITS
        ),
        MAIN_CAUSE,
        *columns(*(figure.head for figure in others), units=UNITS),
    )
    parts = [
        [Cell(text=named(unit.unit)) for unit in units],
        [_count(unit, "forward") for unit in units],
        [_count(unit, "backward") for unit in units],
        [_plain(unit.reduce_scatters) for unit in units],
        *[_cells(figure, units, every) for figure in exposed],
        [_cause(unit) for unit in units],
        *[_cells(figure, units, every) for figure in others],
    ]
    rows = zip(*parts, strict=True)
    whose = "the model's" if len(run.report.models) < 2 else "each model's"
    return [
        html.H2(f"Per step, in {whose} order: compute, and what it waited for"),
        *unit_bars(run.report, longest),
        *unit_map(run),
        html.H2("All figures, times per step"),
        table_tools(name, "units"),
        data_table(name, heads, rows),
    ]


def _cause(unit: UnitRow) -> Cell:
    """What most of a unit's exposed time waited for, and its share of it."""
    found = unit.exposed_ns_by_cause
    known = dict(known_causes(found)) if found is not None else {}
    if not known:
        return Cell(text="-")
    worst = max(known, key=lambda cause: known[cause])
    share = 100 * known[worst] / sum(known.values())
    return Cell(
        text=f"{CAUSE_TITLES[worst]} {share:.0f}\u00a0%",
        hint=", ".join(f"{CAUSE_TITLES[c]} {ms(ns)}" for c, ns in known.items()),
    )


def _cells(
    figure: Figure, units: Sequence[UnitRow], every: Sequence[UnitRow]
) -> list[Cell]:
    """A column of figures; bars are to one scale over `every` unit of all runs."""
    values = [figure.value(unit) for unit in units]
    words = ["-" if value is None else figure.words(value) for value in values]
    cells = number_cells(values, words, [figure.value(unit) for unit in every])
    return cells if figure.bars else [replace(cell, share=None) for cell in cells]


def _count(unit: UnitRow, phase: str) -> Cell:
    counted = _of_phase(unit.all_gathers, phase)
    expected = _of_phase(unit.expected_all_gathers, phase)
    if counted is None:
        return Cell(text="-")
    if expected is None or expected == counted:
        return Cell(text=f"{counted:g}", value=counted)
    words = f"{counted:g} of {expected:g}"
    return Cell(text=words, value=counted, alert=True)


def _of_phase(counts: PhaseCounts, phase: str) -> float | None:
    return counts.forward if phase == "forward" else counts.backward


def _plain(count: float | None) -> Cell:
    return Cell(text="-" if count is None else f"{count:g}", value=count)


def _differences(one: OpenRun, other: OpenRun) -> list[Component]:
    theirs = {unit.unit: unit for unit in other.report.units}
    named = one.named.beside(other.named)
    rows = []
    for unit in one.report.units:
        match = theirs.get(unit.unit)
        if match is None:
            continue
        cells = [Cell(text=named(unit.unit))]
        for value in (_exposed, lambda u: u.forward_ns, lambda u: u.backward_ns):
            cells.append(_difference(value(unit), value(match)))
        rows.append(cells)
    times = ("exposed", "forward", "backward")
    heads = columns("unit", *times, left=("unit",), units=dict.fromkeys(times, "ns"))
    return [
        html.H2(f"Difference: {visible(other.id)} less {visible(one.id)}"),
        table_tools("unit-differences", "units"),
        data_table("unit-differences", heads, rows),
    ]


def _exposed(unit: UnitRow) -> int | None:
    parts = (unit.exposed_ns.forward, unit.exposed_ns.backward)
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _difference(before: int | None, after: int | None) -> Cell:
    if before is None or after is None:
        return Cell(text="-")
    change = after - before
    sign = "+" if change > 0 else ""
    return Cell(text=f"{sign}{ms(change)}", value=change)
