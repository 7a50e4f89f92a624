"""Two runs: what changed in the step, which findings are gone or new, what was set.

The comparison judges what is beyond noise; the waterfall goes from one mean step to the
other by the parts of both budgets, which add up to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.renderers.comparison import alike
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.renderers.reading.unit_names import UnitNames
from fsdpdoctor.renderers.report_view import PART_WORDS
from fsdpdoctor.renderers.tables import Cell
from fsdpdoctor.report import Report
from fsdpdoctor.report.comparison import (
    ComparedFinding,
    Comparison,
    Subject,
    compare,
)
from fsdpdoctor.report.comparison.difference import Difference
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.pages.components import (
    byte_words,
    columns,
    data_table,
    ns_words,
    with_tip,
)

SEEN_SHARE = 0.001
"""Of the longer step: a part that changed by less is no bar of its own."""


def differences(a: OpenRun, b: OpenRun) -> Iterator[Component]:
    """All that stands above two runs beside each other."""
    found = compare(
        *(Subject(name=r.id, measures=r.measures, report=r.report) for r in (a, b))
    )
    yield html.H1(_headline(a, b, found.differences))
    before, after = found.step_time_ns
    named = a.named.beside(b.named)
    yield html.P(
        f"From {visible(a.id)} to {visible(b.id)}: median step {ns_words(before)}, "
        f"then {ns_words(after)}."
    )
    yield from waterfall(a.report, b.report)
    yield html.P(f"{visible(named.words(found.conclusion))}.")
    yield from _findings(found, a, b)
    yield html.H2("What differs")
    if not found.differences:
        yield html.P("No setting differs, and no figure by more than its noise.")
    else:
        groups = _settings_once(alike(found.differences))
        rows = [_row(one, names, named) for one, names in groups]
        words = columns("figure", "units", left=("figure", "units"))
        numbers = columns(visible(a.id), visible(b.id), "change")
        yield data_table("differences", (*words, *numbers), rows)
    for line in found.not_compared:
        yield html.P(f"Not compared: {visible(line)}", className="faint")


def _headline(a: OpenRun, b: OpenRun, rows: Sequence[Difference]) -> str:
    """Faster or slower where the comparison says so, and mostly by what."""
    step = next((row for row in rows if row.figure == "step_time_ns"), None)
    if step is None or not isinstance(step.a, int) or not isinstance(step.b, int):
        return "No difference of the step beyond noise"
    change = step.b - step.a
    words = "slower" if change > 0 else "faster"
    mostly = ""
    parts = changed_parts(a.report, b.report)
    if parts:
        part, ns = max(parts, key=lambda item: item[1] * (1 if change > 0 else -1))
        mostly = f": {signed_ms(ns)} of it {_part(part)}"
    return f"{ms(abs(change))} {words} ({percent(abs(change) / step.a)} of A's){mostly}"


def changed_parts(a: Report, b: Report) -> list[tuple[str, int]]:
    """What each part of the mean step became more or less by, the most first."""
    before, after = a.budget_ns_per_step, b.budget_ns_per_step
    longer = max(sum(before.values()), sum(after.values()))
    changes = [
        (part, after.get(part, 0) - before.get(part, 0))
        for part in dict.fromkeys((*before, *after))
    ]
    seen = [(part, ns) for part, ns in changes if abs(ns) >= SEEN_SHARE * longer]
    return sorted(seen, key=lambda item: (-abs(item[1]), item[0])) if longer else []


def waterfall(a: Report, b: Report) -> Iterator[Component]:
    """From one mean step to the other, part by part, all to one scale."""
    whole, end = (sum(r.budget_ns_per_step.values()) for r in (a, b))
    if not whole or not end:
        return
    parts = changed_parts(a, b)
    rest = end - whole - sum(ns for _, ns in parts)
    steps = [*parts, ("rest", rest)] if rest else parts
    levels = [whole]
    for _, ns in steps:
        levels.append(levels[-1] + ns)
    scale = max(levels)
    cells = _line("mean step before", ms(whole), 0, whole / scale, "floor")
    for (part, ns), level in zip(steps, levels, strict=False):
        kind = "worse" if ns > 0 else "better"
        start, width = min(level, level + ns) / scale, abs(ns) / scale
        cells += _line(_part(part), signed_ms(ns), start, width, kind)
    cells += _line("mean step after", ms(end), 0, end / scale, "floor")
    yield html.Div(cells, className="budget waterfall", id="waterfall")


def _line(
    name: str, figure: str, start: float, width: float, kind: str
) -> list[Component]:
    bar = html.I(
        className=kind,
        style={
            "marginLeft": f"{100 * start:.3f}%",
            "width": f"{max(100 * width, 0.2):.3f}%",
        },
    )
    words = f"{name}: {figure}"
    if kind in ("worse", "better"):
        words += f", {kind}"
    return [
        html.Span(name),
        with_tip(html.Div(bar, className="stack"), words),
        html.Span(figure, className=kind if kind in ("worse", "better") else ""),
    ]


def signed_ms(ns: int) -> str:
    """With its sign."""
    return f"{'+' if ns > 0 else '-'}{ms(abs(ns))}" if ns else ms(0)


def _part(part: str) -> str:
    if part == "rest":
        return "all smaller changes"
    return PART_WORDS.get(part, part.replace("_", " "))


def _findings(found: Comparison, a: OpenRun, b: OpenRun) -> Iterator[Component]:
    """Which findings went and which came: the same code, whatever its figures."""
    gone, new = found.findings_gone, found.findings_new
    for words, rows, kind, of in (
        ("Gone", gone, "better", a),
        ("New", new, "worse", b),
    ):
        if rows:
            said = ", ".join(_finding(row, _model(row, of)) for row in rows)
            yield html.P([html.B(f"{words}: ", className=kind), said])
    if not gone and not new:
        yield html.P("The same findings in both.", className="faint")


def _finding(row: ComparedFinding, model: str | None) -> str:
    cost = row.cost_ns_per_step
    of = "" if model is None else f" of {model}"
    known = f" ({ms(cost)} per step)" if cost is not None else ""
    return f"{row.code} {row.name}{of}{known}"


def _model(row: ComparedFinding, run: OpenRun) -> str | None:
    """Of which of several models a run's finding is."""
    units = (
        each.units
        for each in run.report.findings
        if (each.code, each.summary) == (row.code, row.summary)
    )
    return run.named.model(next(units, ()))


_Group = tuple[Difference, Sequence[str]]


def _settings_once(groups: Sequence[_Group]) -> list[_Group]:
    """A setting that differs from unit to unit is one row: Units has each."""
    of_figure: dict[str, list[_Group]] = {}
    for group in groups:
        if group[0].kind == "setting" and group[1]:
            of_figure.setdefault(group[0].figure, []).append(group)
    made: list[_Group] = []
    for group in groups:
        mine = of_figure.get(group[0].figure, [group])
        if len(mine) == 1:
            made.append(group)
        elif group is mine[0]:
            names = [name for _, each in mine for name in each]
            ways = {one: {str(getattr(g[0], one)) for g in mine} for one in ("a", "b")}
            said = {
                one: found.pop() if len(found) == 1 else "of each unit its own"
                for one, found in ways.items()
            }
            made.append((replace(group[0], a=said["a"], b=said["b"]), names))
    return made


def _row(found: Difference, names: Sequence[str], named: UnitNames) -> list[Cell]:
    words = {"time": ns_words, "bytes": byte_words}.get(found.kind)

    def said(value: object) -> str:
        if words is not None and isinstance(value, int | float):
            return words(value)
        return "-" if value is None else named.words(str(value))

    sign = "+" if (found.change or 0) > 0 else ""
    change = "" if found.change is None else f"{sign}{said(found.change)}"
    of = "-"
    if names:  # one alone is not in quotes
        of = named.listed(names) if len(names) > 1 else named(names[0])
    if found.rank is not None:
        of = f"rank {found.rank}"
    return [
        Cell(text=f"{found.kind}: {_figure(found.figure)}"),
        Cell(text=of),
        Cell(text=said(found.a)),
        Cell(text=said(found.b)),
        Cell(text=change, value=found.change),
    ]


def _figure(name: str) -> str:
    """A figure's place in the report, in words."""
    group, _, part = name.rpartition(".")
    if group == "budget_ns_per_step":
        return PART_WORDS.get(part, part)
    return name.replace("_ns", "").replace(".", ", ").replace("_", " ")
