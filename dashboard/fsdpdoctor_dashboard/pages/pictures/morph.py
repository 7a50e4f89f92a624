"""A step and the same step with a change, mark by mark, for whatif.js to glide between.

Marks are of the same thing where they are of one series and one unit, the first with
the first and so on; what has no counterpart fades.
"""

from __future__ import annotations

import json
from collections import defaultdict

from dash import html
from dash.development.base_component import Component

from fsdpdoctor.quantities import ms
from fsdpdoctor_dashboard.data.run_registry import OpenRun
from fsdpdoctor_dashboard.data.series import ROW_WORDS, SERIES, Row
from fsdpdoctor_dashboard.pages.components import with_data

LANES = (
    Row.COMPUTE,
    Row.ALL_GATHER,
    Row.REDUCE_SCATTER,
    Row.ALL_REDUCE,
    Row.OTHER_COMM,
)
MOST_MARKS = 6_000
"""Of the longest: more are too thin to be seen, and would be sent for nothing."""

Marks = dict[tuple[int, str], list[tuple[int, int]]]
"""By series and unit: start within the step, and length."""


def marks_of(run: OpenRun) -> Marks:
    """The marks of a simulated step that are drawn, in order."""
    found: Marks = defaultdict(list)
    steps = run.measures.ranks[0].steps
    begin = int(steps.start_ns[0]) - run.store.origin_ns
    rank = run.store.ranks[0]
    names, length = run.store.names[rank].in_record, int(steps.duration_ns[0])
    for part in run.store.series(rank):
        row = SERIES[part.series].row
        if row not in LANES and row != Row.EXPOSED:
            continue
        here = part.between(begin, begin + length)
        for start, took, unit in zip(
            (part.start[here] - begin).tolist(),
            part.length[here].tolist(),
            part.unit[here].tolist(),
            strict=True,
        ):
            name = names[unit] if 0 <= unit < len(names) else ""
            found[part.series, name].append((int(start), int(took)))
    return found


def pairs(before: Marks, after: Marks) -> list[list[int]]:
    """Series, start and length before, start and length after; -1: not there."""
    found = []
    for key in {**before, **after}:
        ours, theirs = before.get(key, []), after.get(key, [])
        for at in range(max(len(ours), len(theirs))):
            one = ours[at] if at < len(ours) else (-1, -1)
            other = theirs[at] if at < len(theirs) else (-1, -1)
            found.append([key[0], *one, *other])
    found.sort(key=lambda pair: -max(pair[2], pair[4]))
    return found[:MOST_MARKS]


def morph(before: OpenRun, after: OpenRun, steps_ns: tuple[int, int]) -> Component:
    """The picture, and the button that is held for it."""
    drawn = pairs(marks_of(before), marks_of(after))
    rows = {int(SERIES[pair[0]].row) for pair in drawn}
    content = {
        "now": steps_ns[0],
        "then": steps_ns[1],
        "marks": drawn,
        "rows": [[int(row), ROW_WORDS[row]] for row in LANES if int(row) in rows],
        "exposed": int(Row.EXPOSED),
        "compute": int(Row.COMPUTE),
        "series": [[int(spec.row), spec.colour] for spec in SERIES],
    }
    words = f"{ms(steps_ns[0])} becomes {ms(steps_ns[1])}"
    return html.Div(
        [
            html.Div(
                [
                    with_data(html.Button("Hold H: see the change"), hold="morph"),
                    html.Output(className="morph-now"),
                ],
                className="toolbar",
            ),
            with_data(
                html.Canvas(title=f"The simulated step: {words}."),
                marks=json.dumps(content, separators=(",", ":")),
            ),
        ],
        className="morph",
    )
