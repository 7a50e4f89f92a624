"""Units as bars in the model's order: which one computes, and which one waits for what.

Every figure is a field of the report's units; nothing is computed here but widths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.quantities import ms
from fsdpdoctor.renderers.palette import SERIES
from fsdpdoctor.renderers.reading.outlook import CAUSE_TITLES, known_causes
from fsdpdoctor.renderers.reading.unit_names import UnitNames, by_model, names_in
from fsdpdoctor.report.value import Report, UnitRow
from fsdpdoctor_dashboard.pages.components import with_tip

MOST_BARS = 200
"""Of a model: beyond that a bar would be a line, and the page all bars."""
MANY_BARS = 24
"""Of a model: more are drawn closer together."""


class Part(NamedTuple):
    """A stretch of a unit's bar."""

    words: str
    ns: int
    colour: str = ""
    cause: str = ""  # of exposed time


def parts_of(unit: UnitRow) -> list[Part]:
    """Own compute, then what it was waited for, by cause where that is known."""
    found = [
        Part("own forward", unit.forward_ns or 0, SERIES["forward"]),
        Part("own backward", unit.backward_ns or 0, SERIES["backward"]),
    ]
    if unit.exposed_ns_by_cause is not None:
        found += [
            Part(f"exposed, {CAUSE_TITLES[cause]}", ns, "", cause)
            for cause, ns in known_causes(unit.exposed_ns_by_cause)
        ]
    else:
        found.append(Part("exposed", exposed_ns(unit), "var(--exposed-mark)"))
    return [part for part in found if part.ns]


def exposed_ns(unit: UnitRow) -> int:
    """What compute waited for a unit in a step, in both phases."""
    return (unit.exposed_ns.forward or 0) + (unit.exposed_ns.backward or 0)


def unit_bars(report: Report, longest: int) -> Iterator[Component]:
    """A bar per unit in its model's order, all to one scale, and what colours mean."""
    if not longest:
        return
    for model, units in by_model(report.units, report.models):
        if model is not None:
            yield html.H3(model)
        yield _bars(units, longest, names_in(report))
    yield _legend([part for unit in report.units for part in parts_of(unit)])


def _bars(units: Sequence[UnitRow], longest: int, named: UnitNames) -> Component:
    cells: list[Component] = []
    for unit in units[:MOST_BARS]:
        name, found = named.within(unit.unit), parts_of(unit)
        said = ", ".join(f"{part.words} {ms(part.ns)}" for part in found)
        about = f"{named(unit.unit)}, per step on average"
        cells += [
            html.Span(name, title=name, className="name"),
            with_tip(
                html.Div([_piece(part, longest) for part in found], className="stack"),
                f"{about}: {said or 'nothing measured'}",
            ),
            html.Span(
                ms(exposed_ns(unit)),
                className="exposed" if exposed_ns(unit) else "faint",
            ),
        ]
    many = " many" if len(units) > MANY_BARS else ""
    return html.Div(cells, className=f"budget units{many}")


def longest_ns(units: Sequence[UnitRow]) -> int:
    """The longest bar's whole."""
    return max((sum(p.ns for p in parts_of(unit)) for unit in units), default=0)


def _piece(part: Part, longest: int) -> Component:
    style = {"width": f"{100 * part.ns / longest:.3f}%"}
    if part.colour:
        style["backgroundColor"] = part.colour
    kind = f"cause {part.cause} hatched" if part.cause else ""
    return html.I(className=kind, style=style)


def _legend(parts: Sequence[Part]) -> Component:
    totals: dict[tuple[str, str, str], int] = {}
    for words, ns, colour, cause in parts:
        key = (words, colour, cause)
        totals[key] = totals.get(key, 0) + ns
    return html.Ul(
        [
            html.Li(
                [
                    html.Span(
                        className=f"swatch cause {cause} hatched"
                        if cause
                        else "swatch",
                        style={"backgroundColor": colour} if colour else {},
                    ),
                    html.Span(words),
                    html.Span(ms(ns)),
                ]
            )
            for (words, colour, cause), ns in totals.items()
        ],
        className="legend",
    )
