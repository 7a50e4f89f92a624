"""Memory: which units are unsharded when, and what is allocated, over one step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dash import html
from dash.development.base_component import Component

from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.quantities import ms, percent, size
from fsdpdoctor.renderers.reading.memory_words import memory_lines
from fsdpdoctor.renderers.reading.unit_names import UnitNames
from fsdpdoctor.renderers.tables import Cell
from fsdpdoctor.report.memory import of_rank
from fsdpdoctor.report.memory_peak import MemoryPeak, memory_peak
from fsdpdoctor.schema import UNKNOWN, Phase
from fsdpdoctor_dashboard.data.rank_tracks import middle_step
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.components import (
    Context,
    byte_words,
    chooser,
    chosen,
    columns,
    data_table,
    number_cells,
    plot,
    run_page,
    table_tools,
)
from fsdpdoctor_dashboard.pages.pictures import memory_figures as figures
from fsdpdoctor_dashboard.pages.pictures.unit_map import extent


def page(context: Context) -> Component:
    """One rank and step of each run."""
    return run_page(context, "Memory", lambda name, run: _of(context, name, run))


def _of(context: Context, name: str, run: OpenRun) -> list[Component]:
    ranks = run.measures.rank_numbers
    rank = run.measures.of(chosen(context, "rank", ranks))
    steps = rank.judged_steps.tolist() or rank.steps.step.tolist()
    if not steps:
        return [html.P("No whole step was recorded.")]
    step = chosen(context, "step", steps, middle_step(rank))
    return [
        chooser(context, "memory", "rank", ranks, rank.rank),
        chooser(context, "memory", "step", steps, step),
        *_step(rank, step, context.theme, run.named),
        html.H2("Peak while a unit ran, of the judged steps"),
        *_peaks(name, rank, run.named),
    ]


def _step(
    rank: RankMeasures, step: int, theme: str, named: UnitNames
) -> Iterator[Component]:
    """What is held over a step, with its peak in words, and the windows of units."""
    names = figures.curves_of(rank, step)
    peak = memory_peak(rank, step)
    yield html.H2(f"Step {step}: memory and unsharded units")
    if peak is not None:
        yield from _peak_words(rank, step, peak, named)
    if names or (rank.windows.step == step).any():
        yield plot(figures.memory_step(rank, step, peak, theme, named))
    if not names:
        yield _faint("Cannot tell: the source holds no memory samples of this step.")
    elif "allocated_bytes" not in names:
        yield _faint(
            "Allocated and reserved memory: cannot tell, the CPU has no allocator "
            "statistics."
            if rank.header.device == "cpu"
            else "Allocated and reserved memory: cannot tell, the source has no "
            "allocator statistics."
        )
    if len(names) > 1 and "rss_bytes" in names:
        resident = figures.samples_of(rank, step).rss_bytes
        yield _faint(
            f"Resident memory of the whole process: up to {size(int(resident.max()))} "
            "in this step."
        )
    if not (rank.windows.step == step).any():
        yield _faint("Cannot tell: the source does not show when units are unsharded.")


def _faint(words: str) -> Component:
    return html.P(words, className="faint")


PEAK_OF = {
    "allocated_bytes": "Most allocated",
    "unsharded_bytes": "Most unsharded parameters",
}
NAMED_ALIVE = 6
"""Units that are named as alive at the peak; of more only their number is said."""


def _peak_words(
    rank: RankMeasures, step: int, peak: MemoryPeak, named: UnitNames
) -> Iterator[Component]:
    begin, _ = extent(rank, step)
    where = f" in {named(peak.unit)}, {peak.phase}" if peak.unit is not None else ""
    words = f"{PEAK_OF[peak.curve]}: {size(peak.bytes)}, {ms(peak.time_ns - begin)} "
    words += f"into the step{where}."
    if rank.header.device_bytes > 0:
        share = percent(peak.bytes / rank.header.device_bytes)
        words += f" That is {share} of the device's {size(rank.header.device_bytes)}."
    yield html.P([html.B("Peak. "), words])
    if peak.alive:
        alive = [
            f"{named(unit)} ({byte_words(count)})"
            for unit, count in peak.alive[:NAMED_ALIVE]
        ]
        more = len(peak.alive) - len(alive)
        others = f" and {more} more" if more else ""
        yield html.P(f"Unsharded then: {', '.join(alive)}{others}.")


def _peaks(name: str, rank: RankMeasures, named: UnitNames) -> list[Component]:
    """The most that was allocated while a unit ran, by phase, over judged steps."""
    times = rank.unit_times.rows(rank.in_judged(rank.unit_times.step))
    times = times.rows(times.peak_bytes != UNKNOWN)
    if not len(times):
        return _counted(name, rank, named)
    units = np.unique(times.unit).tolist()
    parts = [[Cell(text=named(rank.unit_name(u) or "?")) for u in units]]
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        peaks = []
        for unit in units:
            mine = (times.unit == unit) & (times.phase == phase)
            peaks.append(int(times.peak_bytes[mine].max()) if mine.any() else None)
        parts.append(number_cells(peaks, [byte_words(peak) for peak in peaks]))
    rows = zip(*parts, strict=True)
    phases = ("forward", "backward")
    counted = dict.fromkeys(phases, "bytes")
    heads = columns("unit", *phases, left=("unit",), units=counted)
    return [table_tools(name, "units"), data_table(name, heads, rows)]


def _counted(name: str, rank: RankMeasures, named: UnitNames) -> list[Component]:
    """The same without an allocator, of the step whose storages were counted."""
    memory = rank.header.memory
    if memory is None or memory.refused is not None:
        why = "" if memory is None else f", and no step was counted: {memory.refused}"
        words = f"Cannot tell: peaks by unit take the allocator's statistics{why}."
        return [_faint(words)]
    row = of_rank(rank, memory)
    (line,) = memory_lines(row, named)
    parts = [[Cell(text=named(unit.unit)) for unit in row.units]]
    for figure in ("forward_peak_bytes", "backward_peak_bytes", "activation_bytes"):
        held = [getattr(unit, figure) for unit in row.units]
        parts.append(number_cells(held, [byte_words(one) for one in held]))
    names = ("forward", "backward", "activations")
    counted = dict.fromkeys(names, "bytes")
    heads = columns("unit", *names, left=("unit",), units=counted)
    said = f"Of the one step whose storages were counted, {line}."
    table = data_table(name, heads, zip(*parts, strict=True))
    return [html.P(said), table_tools(name, "units"), table]
