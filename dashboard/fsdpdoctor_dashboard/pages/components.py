"""Pieces that several pages lay out: numbers in words, tables with bars, links."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import urlencode

from dash import dcc, html
from dash.development.base_component import Component

from fsdpdoctor.finding import Location
from fsdpdoctor.network import Link
from fsdpdoctor.quantities import NOT_MEASURED, ms, percent, size
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.renderers.reading.glossary import split_terms, term_of
from fsdpdoctor.renderers.tables import Cell, Column
from fsdpdoctor_dashboard.data.rank_tracks import stretch_of
from fsdpdoctor_dashboard.data.run_registry import OpenRun

CAUSES_EXPLAINED = {
    "host_late": "the CPU had not issued it yet",
    "queued": "issued, and its lane was busy",
    "straggler": "the last rank had not arrived",
    "wire": "bytes were moving",
    "tail": "done, until compute went on",
    "wire_or_straggler": "a late rank or moving bytes: ranks could not be matched",
}
"""What compute waited for while it stood still for a collective."""

PER_STEP = "Per step: the mean over judged steps."
"""On each page with such figures, so that none is taken for a median or one step."""

SHORT_LIST = 16
"""Up to so many ranks or steps are all listed."""
BAR_PIXELS = 26
"""Of the longest bar in a table: fifteen columns then fit a window of 1440 pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where a page stands: the app's prefix, the theme, and the runs it shows."""

    base: str
    theme: str
    runs: tuple[OpenRun, ...]
    query: Mapping[str, str] = field(default_factory=dict)  # of the address
    network: Link | None = None  # where `view --link` names it

    @property
    def run(self) -> OpenRun:
        """The first run, which the page is about."""
        return self.runs[0]

    def link(self, page: str, **query: str | int) -> str:
        """The address of a page about the same runs."""
        ids: dict[str, str | int] = {"run": self.run.id}
        if len(self.runs) > 1:
            ids["with"] = self.runs[1].id
        return f"{self.base}{page}?{urlencode({**ids, **query})}"


Section = Callable[[str, OpenRun], Sequence[Component]]
"""What a page says of one run, whose name in ids comes first."""


def run_page(
    context: Context, title: str, section: Section, *above: Component
) -> Component:
    """A page about each run by itself, two runs beside each other."""
    name = title.lower().replace(" ", "-")
    sections = [
        html.Div([*so_far(run), *section(f"{name}-{at}", run)])
        for at, run in enumerate(context.runs)
    ]
    return html.Main([html.H1(title), *above, side_by_side(context, sections)])


def so_far(run: OpenRun) -> list[Component]:
    """That a run is still going, where it is."""
    if not run.going:
        return []
    words = "This run is still going: all figures are of the steps so far."
    return [html.P(words, className="alert")]


def plot(figure: object) -> Component:
    """A figure, without its maker's mark."""
    return dcc.Graph(figure=figure, config={"displaylogo": False})


def chosen(
    context: Context, name: str, among: Sequence[int], usual: int | None = None
) -> int:
    """What the address asks for, where there is such a one; else the usual one."""
    first = among[0] if usual is None else usual
    asked = context.query.get(name, "")
    number = int(asked) if asked.isdecimal() else first
    return number if number in among else first


def chooser(
    context: Context, page: str, name: str, among: Sequence[int], now: int
) -> Component:
    """Links to all that can be chosen, or to the neighbours, the first and the last."""
    at, last = list(among).index(now), len(among) - 1
    near = {0, at - 1, at, at + 1, last}
    places = [p for p in range(last + 1) if p in near or last < SHORT_LIST]
    others: dict[str, str | int] = dict(context.query)
    links: list[Component] = [html.Span(name, className="faint")]
    for before, place in zip([-1, *places], places, strict=False):
        if place > before + 1:
            links.append(html.Span("...", className="faint"))
        number = among[place]
        if number == now:
            links.append(html.B(str(number)))
        else:
            href = context.link(page, **(others | {name: number}))
            links.append(dcc.Link(str(number), href=href))
    return html.Div(links, className="toolbar")


def ns_words(ns: float | None) -> str:
    """Milliseconds, or that they were not measured."""
    return NOT_MEASURED if ns is None else ms(ns)


def byte_words(count: float | None) -> str:
    """Bytes, or that they were not measured."""
    return NOT_MEASURED if count is None else size(count)


def share_words(share: float | None) -> str:
    """A percentage, or that it was not measured."""
    return NOT_MEASURED if share is None else percent(share)


def with_data(component: Component, **data: str) -> Component:
    """A component with `data-` attributes, which page.js reads."""
    for name, value in data.items():
        setattr(component, f"data-{name.replace('_', '-')}", value)
    return component


def with_tip(component: Component, words: str) -> Component:
    """A picture that says what it shows: to the mouse, to a key, to a finger and to who
    cannot see it. page.js shows the words.
    """
    setattr(component, "role", "img")  # noqa: B010
    setattr(component, "tabIndex", 0)  # noqa: B010
    setattr(component, "aria-label", words)
    return with_data(component, tip=words)


def with_terms(words: str) -> list[Component | str]:
    """Words whose terms say what they mean: to the mouse, a key and a finger."""
    return [
        piece
        if isinstance(piece, str)
        else with_data(
            html.Dfn(piece[0], className="term", tabIndex=0), tip=piece[1].meaning
        )
        for piece in split_terms(words)
    ]


def with_codes(context: Context, words: str) -> list[Component | str]:
    """Words whose finding codes lead to their page."""
    parts = CODE.split(words)
    return [
        dcc.Link(part, href=context.link("explain", code=part), className="code-link")
        if at % 2
        else part
        for at, part in enumerate(parts)
        if part
    ]


CODE = re.compile(r"(FD\d{3})")


def columns(
    *titles: str,
    left: Collection[str] = (),
    exposed: Collection[str] = (),
    units: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Column, ...]:
    """A table's columns by title; those of words are `left`, `units` are values'."""
    return tuple(
        Column(
            title=title,
            left=title in left,
            exposed=title in exposed,
            unit=units.get(title, ""),
        )
        for title in titles
    )


def data_table(
    name: str, heads: Sequence[Column], rows: Iterable[Sequence[Cell]]
) -> Component:
    """A table that sorts by a click on a head; its first column is the name."""
    return html.Div(
        html.Table(
            [
                html.Thead(html.Tr([head_cell(column) for column in heads])),
                html.Tbody(
                    [
                        html.Tr(
                            [table_cell(*pair) for pair in zip(heads, row, strict=True)]
                        )
                        for row in rows
                    ]
                ),
            ],
            id=name,
            className="data",
        ),
        className="scroll",
    )


def head_cell(column: Column) -> Component:
    """A head that sorts, and says what it means where that is a term."""
    kind = "words" if column.left else ""
    head = html.Th(column.title, className=kind, tabIndex=0)
    term = term_of(column.title)
    tip = "Sorts by this." if term is None else f"{term.meaning} Sorts by this."
    return with_data(head, sort="1", saved=_saved_title(column), tip=tip)


def _saved_title(column: Column) -> str:
    """A head as a saved table has it: figures are saved in the unit it names."""
    return f"{column.title} [{column.unit}]" if column.unit else column.title


def table_cell(column: Column, cell: Cell) -> Component:
    """A cell with its bar, and its value to sort by."""
    content: list[Component | str] = []
    if cell.share:
        kind = "inline exposed" if column.exposed else "inline"
        width = f"{max(1.0, BAR_PIXELS * cell.share):.1f}px"
        content.append(html.I(className=kind, style={"width": width}))
    words = visible(cell.text)
    content += _broken(words) if column.left and column.breaks else [words]
    made = html.Td(
        content, className=_kind(column, cell), title=visible(cell.hint or words)
    )
    return made if column.left else with_data(made, value=_sortable(cell))


def _kind(column: Column, cell: Cell) -> str:
    """The class of a cell, for style.css."""
    if column.left:
        return "words" if column.breaks else "words close"
    if cell.alert:
        return "mismatch"
    if column.exposed:
        return "exposed" if cell.value else "faint"
    return ""


def _broken(words: str) -> list[Component | str]:
    """Words that may go on in another line after each dot: a module's long name."""
    first, *others = words.split(".")
    parts: list[Component | str] = [first]
    for part in others:
        parts += [".", html.Wbr(), part]
    return parts


def _sortable(cell: Cell) -> str:
    return "" if cell.value is None else f"{cell.value:.12g}"


def number_cells(
    values: Sequence[float | None],
    words: Sequence[str],
    beside: Sequence[float | None] = (),
) -> list[Cell]:
    """A column of numbers whose bars are measured against its largest one, or against
    the largest of another run's beside it.
    """
    every = [value for value in (*values, *beside) if value is not None]
    largest = max(every, default=0) or 1
    return [
        Cell(text=text, value=value, share=None if value is None else value / largest)
        for value, text in zip(values, words, strict=True)
    ]


def table_tools(name: str, what: str) -> Component:
    """A filter and a button that saves the table."""
    return html.Div(
        [
            # page.js filters: Dash's field only gives the place to type in.
            with_data(
                html.Span(dcc.Input(type="search", placeholder=f"filter {what}")),
                filter_for=name,
            ),
            with_data(html.Button("Save as CSV"), csv=name),
        ],
        className="toolbar",
    )


def place_link(context: Context, run: OpenRun, place: Location) -> str | None:
    """The timeline, at the place that shows a finding."""
    found = on_timeline(run, place)
    if found is None:
        return None
    t0, t1 = found
    room = max(t1 - t0, 2000)
    return context.link("timeline", t0=t0 - room, t1=t1 + room)


def on_timeline(run: OpenRun, place: Location) -> tuple[int, int] | None:
    """A place as the timeline counts: ns from its origin on, on the shared clock."""
    found = stretch_of(run.measures, run.store, place)
    return None if found is None else (found.start, found.end)


def side_by_side(context: Context, sections: Sequence[Component]) -> Component:
    """One section, or two runs' beside each other under their names."""
    if len(sections) == 1:
        return sections[0]
    return html.Div(
        [
            html.Section([html.H2(visible(run.id), className="run"), section])
            for run, section in zip(context.runs, sections, strict=True)
        ],
        className="twice",
    )
