"""Runs: all of a folder in one table, to find one, or two to compare."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import quote, urlencode

from dash import dcc, html
from dash.development.base_component import Component

from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.renderers.tables import Cell
from fsdpdoctor_dashboard.data.run_registry import Entry
from fsdpdoctor_dashboard.data.run_summaries import RunSummary
from fsdpdoctor_dashboard.pages.components import (
    columns,
    head_cell,
    table_cell,
    table_tools,
    with_data,
)

TABLE = "runs-table"

SPARK_WIDTH, SPARK_HEIGHT = 120, 26
SHARE, STEP = "exposed share", "median step"


def page(
    base: str, entries: Sequence[Entry], known: dict[str, RunSummary]
) -> Component:
    """The table, as far as runs are read."""
    read = sum(entry.id in known for entry in entries)
    waiting = len(entries) - read
    words = f"{len(entries)} runs" + (f", {waiting} being read" if waiting else "")
    heads = columns(
        *("run", "started", "ranks", STEP, SHARE, "steps", "verdict"),
        left=("run", "started", "steps", "verdict"),
        units={STEP: "ns", SHARE: "share", "started": "unix ns"},
    )
    rows = [_row(base, entry, known.get(entry.id)) for entry in entries]
    compare = html.Button("Compare: tick two", id="compare", disabled=True)
    return html.Main(
        [
            html.H1("Runs"),
            html.P(
                f"{words}. The newest first; a click on a head sorts. Tick two to "
                "compare them. The exposed share is of the mean step.",
                className="faint",
                role="status",
            ),
            html.Div(
                [
                    table_tools(TABLE, "by name or verdict"),
                    with_data(compare, base=base),
                ],
                id="run-tools",
            ),
            html.Div(
                html.Table(
                    [
                        html.Thead(html.Tr([head_cell(column) for column in heads])),
                        html.Tbody(rows),
                    ],
                    id=TABLE,
                    className="data",
                ),
                className="scroll",
            ),
        ]
    )


def in_order(entries: Sequence[Entry], known: dict[str, RunSummary]) -> list[Entry]:
    """The newest first; those that do not say when they began come last."""

    def key(entry: Entry) -> tuple[int, str]:
        found = known.get(entry.id)
        return (-((found and found.started_unix_ns) or 0), entry.id)

    return sorted(entries, key=key)


def _row(base: str, entry: Entry, found: RunSummary | None) -> Component:
    name = visible(entry.id)
    tick = with_data(html.Button(role="checkbox", className="tick"), tick=entry.id)
    setattr(tick, "aria-label", f"compare {name}")
    setattr(tick, "aria-checked", "false")
    href = f"{base}?{urlencode({'run': entry.id})}"
    link = dcc.Link(name, href=href, title=visible(str(entry.path)))
    first = html.Td([tick, link], className="words")
    if found is None:
        return html.Tr([first, html.Td("being read", colSpan=6, className="words")])
    if found.error is not None:
        words = html.Td(visible(found.error), colSpan=6, className="words mismatch")
        return html.Tr([first, words])
    started, step, share = found.started_unix_ns, found.step_ns, found.exposed_share
    cells = (
        Cell(text=_date(started), value=started),
        Cell(text=str(found.world_size), value=found.world_size),
        Cell(text="-" if step is None else ms(step), value=step),
        Cell(text="-" if share is None else percent(share), value=share, share=share),
    )
    kinds = columns("started", "ranks", STEP, SHARE, exposed=(SHARE,))
    return html.Tr(
        [
            first,
            *[table_cell(*pair) for pair in zip(kinds, cells, strict=True)],
            with_data(html.Td(_spark(found.steps), className="words"), saved=""),
            html.Td(visible(found.verdict), className="words"),
        ]
    )


def _date(unix_ns: int | None) -> str:
    if unix_ns is None:
        return "-"
    return datetime.fromtimestamp(unix_ns / 1e9).strftime("%Y-%m-%d %H:%M")


def _spark(steps: Sequence[int]) -> Component | str:
    """A line of step times from 0 up, with the longest marked."""
    if len(steps) < 2:
        return "-"
    most = max(steps)
    across = (SPARK_WIDTH - 6) / (len(steps) - 1)
    points = [
        (3 + at * across, 3 + (SPARK_HEIGHT - 6) * (1 - ns / most))
        for at, ns in enumerate(steps)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[steps.index(most)]
    # Colours that can be seen on both grounds: the picture does not know the theme.
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SPARK_WIDTH}" '
        f'height="{SPARK_HEIGHT}"><polyline points="{line}" fill="none" '
        f'stroke="#57788f" stroke-width="1.5"/><circle cx="{x:.1f}" cy="{y:.1f}" '
        f'r="2.5" fill="#8e7cc3"/></svg>'
    )
    words = f"{len(steps)} judged steps, from {ms(min(steps))} to {ms(most)}"
    return html.Img(
        src=f"data:image/svg+xml,{quote(drawn)}",
        alt=words,
        title=words,
        className="spark",
    )
