"""A comparison on the terminal: settings, then figures, one line each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from fsdpdoctor.quantities import (
    NOT_MEASURED,
    count,
    duration,
    ms,
    size,
)
from fsdpdoctor.renderers.formatting import shorten, visible
from fsdpdoctor.renderers.reading.unit_names import UnitNames
from fsdpdoctor.report.comparison import ComparedFinding, Comparison
from fsdpdoctor.report.comparison.difference import Difference, Scalar
from fsdpdoctor.report.comparison.sheet import Figure, Sheet

MOST_LINES = 40
"""Differences shown of each sort; --json has them all."""

UNIT_WIDTH = 24


def show_comparison(comparison: Comparison, console: Console, named: UnitNames) -> None:
    """Print what differs from A to B, whose units are called so."""
    _print(console, _headline(comparison), "bold")
    _print(console, f"A: {visible(comparison.a)}", "dim")
    _print(console, f"B: {visible(comparison.b)}", "dim")
    _print(console, visible(f"{named.words(comparison.conclusion)}."))
    _show_findings(console, "Gone", comparison.findings_gone)
    _show_findings(console, "New", comparison.findings_new)
    for title, kinds in (
        ("Settings (A, B)", ("setting",)),
        ("Counts and bytes per unit (A, B)", ("count", "bytes")),
        ("Times per step (A, B, change, noise)", ("time",)),
    ):
        rows = alike([d for d in comparison.differences if d.kind in kinds])
        if not rows:
            continue
        console.print()
        _print(console, title, "bold")
        for row, names in rows[:MOST_LINES]:
            _print(console, f"  {_line(row, names, named)}")
        if len(rows) > MOST_LINES:
            _print(console, f"  and {len(rows) - MOST_LINES} more, see --json", "dim")
    for reason in comparison.not_compared:
        console.print()
        _print(console, f"not compared: {visible(reason)}", "yellow")


def show_sheets(sheets: Sequence[Sheet], console: Console) -> None:
    """Print each run's figures, then once what they mean."""
    for sheet in sheets:
        _print(console, visible(sheet.run), "bold")
        _print(console, f"{sheet.world_size} ranks, {visible(sheet.device)}", "dim")
        for figure in sheet.figures:
            name = figure.name.replace("_", " ")
            _print(console, f"  {name:<30} {visible(_figure_words(figure))}")
        console.print()
    _print(console, "What they mean (middle half of the samples in brackets)", "dim")
    said: dict[str, None] = {}
    for sheet in sheets:
        for figure in sheet.figures:
            said[f"{figure.name.replace('_', ' ')}: {figure.definition}"] = None
    for line in said:
        _print(console, f"  {visible(line)}", "dim")


def _figure_words(figure: Figure) -> str:
    if figure.value is None or figure.low is None or figure.high is None:
        return f"{NOT_MEASURED}: {figure.why_not}"
    value, low, high = (
        _in_unit(figure.unit, v) for v in (figure.value, figure.low, figure.high)
    )
    return f"{value} [{low} to {high}], {count(figure.samples, 'sample')}"


def _in_unit(unit: str, value: float) -> str:
    if unit == "ns":
        return duration(value)
    if unit == "bytes":
        return size(round(value))
    return f"{value * 100:.3g} %" if unit == "share" else f"{value:,.0f}"


def _show_findings(
    console: Console, word: str, found: Sequence[ComparedFinding]
) -> None:
    if found:
        console.print()
        _print(console, f"{word} findings", "bold")
    for row in found:
        cost = row.cost_ns_per_step
        known = f" ({ms(cost)} per step)" if cost is not None else ""
        _print(console, f"  {row.code} {row.name}{known}: {visible(row.summary)}")


def _print(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style), soft_wrap=True)


def _headline(comparison: Comparison) -> str:
    a, b = comparison.step_time_ns
    if a is None or b is None:
        return "step time not measured in both runs"
    return f"median step {ms(a)} to {ms(b)}"


def alike(rows: Sequence[Difference]) -> list[tuple[Difference, tuple[str, ...]]]:
    """Differences with the units they are of: what many units share stands once."""
    groups: dict[tuple[object, ...], list[Difference]] = {}
    for row in rows:
        # Times are each unit's own.
        own = row.unit if row.kind == "time" else row.unit is None
        groups.setdefault((row.figure, row.rank, row.a, row.b, own), []).append(row)
    return [
        (group[0], tuple(row.unit for row in group if row.unit is not None))
        for group in groups.values()
    ]


def _line(row: Difference, names: tuple[str, ...], named: UnitNames) -> str:
    of = f"{shorten(named.listed(names), UNIT_WIDTH)}  " if names else ""
    if row.rank is not None:
        of = f"rank {row.rank}  "
    name = f"{of}{visible(row.figure)}"
    line = f"{name:<52} {_value(row, row.a, named)}, {_value(row, row.b, named)}"
    if row.kind == "time" and row.change is not None and row.noise is not None:
        sign = "+" if row.change > 0 else "-"
        line += f", {sign}{ms(abs(row.change))}, {ms(row.noise)}"
    return line


def _value(row: Difference, value: Scalar, named: UnitNames) -> str:
    if value is None:
        return NOT_MEASURED if row.kind != "setting" else "not set"
    if isinstance(value, str | bool):
        return visible(named.words(str(value)))
    if row.kind == "time":
        return ms(value)
    return size(value) if row.kind == "bytes" else f"{value:g}"
