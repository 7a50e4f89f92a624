"""A picture of a run to show to others: the verdict, the budget, a typical step.

An SVG of 1200 by 630 pixels, as pages that preview links want; it loads nothing, and
the shared page saves it as PNG.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from textwrap import shorten, wrap

import numpy as np

from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor.renderers.palette import EXPOSED, INKS, OUTLOOK, PARTS
from fsdpdoctor.renderers.palette import SERIES as COLOURS
from fsdpdoctor.renderers.reading.outlook import outlook, outlook_words
from fsdpdoctor.renderers.report_view import BudgetPart, content_of
from fsdpdoctor.report import Report
from fsdpdoctor_dashboard.data.series import ROW_WORDS, SERIES, Row
from fsdpdoctor_dashboard.data.store import Series, Store

WIDTH, HEIGHT = 1200, 630
LEFT, RIGHT = 60, 1140
LANES = (
    Row.COMPUTE,
    Row.ALL_GATHER,
    Row.REDUCE_SCATTER,
    Row.ALL_REDUCE,
    Row.OTHER_COMM,
)
LANE_LEFT, LANE_TOP, LANE_HEIGHT = 190, 420, 26
HEAD = (
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
    f'viewBox="0 0 {WIDTH} {HEIGHT}" '
    'font-family="system-ui, Segoe UI, Roboto, Helvetica, Arial, sans-serif">'
)
LINES = 3
"""Of the verdict."""
LINE_CHARACTERS = 58
ABOUT_CHARACTERS = 90
SEEN_SHARE = 0.005
NAMED_PARTS = 4
INK, FAINT = INKS["light"]["text"], INKS["light"]["faint"]


def share_card(report: Report, store: Store) -> str:
    """The picture."""
    content = content_of(report)
    room = LINE_CHARACTERS * LINES - LINES * 8  # lines end where words do
    headline = shorten(content.headline, room, placeholder=" ...")
    lines = wrap(headline, LINE_CHARACTERS)
    return "\n".join(
        (
            HEAD,
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            _hatch(),
            *(
                _text(LEFT, 70 + 42 * at, line, size=31, weight=700)
                for at, line in enumerate(lines)
            ),
            *_outlook(report),
            *_budget(content.budget, content.budget_total),
            *_step(store, report.health.judged_steps),
            _text(LEFT, 604, _about(report), size=18, ink=FAINT),
            _text(RIGHT, 604, "fsdpdoctor", size=20, weight=700, anchor="end"),
            "</svg>\n",
        )
    )


def _hatch() -> str:
    return (
        '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="7" height="7" fill="{EXPOSED}"/>'
        '<rect width="3" height="7" fill="#ffffff" opacity="0.35"/></pattern></defs>'
    )


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int,
    weight: int = 400,
    ink: str = INK,
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'fill="{ink}" text-anchor="{anchor}">{escape(visible(words))}</text>'
    )


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.6):.1f}" '
        f'height="{height}" fill="{fill}"/>'
    )


def _outlook(report: Report) -> Iterator[str]:
    ends = outlook(report)
    if ends is None:
        return
    scale = (RIGHT - LEFT) / ends.now
    x: float = LEFT
    pieces = (
        ("floor", ends.floor),
        ("left", ends.after - ends.floor),
        ("gain", ends.now - ends.after),
    )
    for kind, ns in pieces:
        if ns > 0:
            yield _rect(x, 196, ns * scale, 30, OUTLOOK[kind])
            x += ns * scale
    yield _text(LEFT, 254, f"Mean step: {outlook_words(ends)}", size=21)


def _budget(parts: tuple[BudgetPart, ...], total: str) -> Iterator[str]:
    """One bar of the mean step, and its largest parts in words."""
    if not parts:
        return
    x: float = LEFT
    for part in parts:
        width = part.share * (RIGHT - LEFT)
        yield _rect(x, 286, width, 34, _fill(part))
        x += width
    seen = [part for part in parts if part.share >= SEEN_SHARE]
    named = sorted(seen, key=lambda part: -part.ns)[:NAMED_PARTS]
    x = LEFT
    for part in named:
        words = f"{part.words} {percent(part.share)}"
        yield _rect(x, 336, 15, 15, _fill(part))
        yield _text(x + 21, 349, words, size=18)
        x += 46 + 9.6 * len(words)


def _fill(part: BudgetPart) -> str:
    return "url(#hatch)" if part.exposed else PARTS[part.part]


def _step(store: Store, judged: Sequence[int]) -> Iterator[str]:
    """The judged step of the middle length on the first rank, lane by lane."""
    if not store.ranks:
        return
    series = store.series(store.ranks[0])
    ruler = next((s for s in series if SERIES[s.series].row == Row.STEP), None)
    rows = [] if ruler is None else np.flatnonzero(np.isin(ruler.span, judged)).tolist()
    if ruler is None or not rows:
        return
    middle = sorted(rows, key=lambda at: int(ruler.length[at]))[len(rows) // 2]
    t0 = int(ruler.start[middle])
    length = int(ruler.length[middle])
    number = int(ruler.span[middle])
    words = f"Step {number} of rank {store.ranks[0]}: {ms(length)}"
    yield _text(LEFT, LANE_TOP - 16, words, size=18, ink=FAINT)
    there = {SERIES[s.series].row for s in series if len(s.start)}
    lanes = [row for row in LANES if row in there]
    for at, row in enumerate(lanes):
        y = LANE_TOP + at * (LANE_HEIGHT + 6)
        yield _text(LEFT, y + 19, ROW_WORDS[row], size=16, ink=FAINT)
        yield _rect(LANE_LEFT, y, RIGHT - LANE_LEFT, LANE_HEIGHT, INKS["light"]["lane"])
        for s in series:
            if SERIES[s.series].row == row:
                fill = COLOURS[SERIES[s.series].colour]
                yield from _marks(s, (t0, length), y, fill)
            if row == Row.COMPUTE and SERIES[s.series].row == Row.EXPOSED:
                yield from _marks(s, (t0, length), y, "url(#hatch)")


def _marks(s: Series, step: tuple[int, int], y: int, fill: str) -> Iterator[str]:
    """Marks within a step; those that fall on one pixel are drawn once."""
    t0, length = step
    scale = (RIGHT - LANE_LEFT) / length
    start = s.start.astype(np.int64) - t0
    begin = np.clip(start * scale, 0, RIGHT - LANE_LEFT)
    end = np.clip((start + s.length) * scale, 0, RIGHT - LANE_LEFT)
    drawn = -1.0
    for x0, x1 in zip(begin.tolist(), end.tolist(), strict=True):
        if x1 <= drawn or x1 <= 0 or x0 >= RIGHT - LANE_LEFT:
            continue
        x0 = max(x0, drawn)
        x1 = max(x1, x0 + 0.6)
        yield _rect(LANE_LEFT + x0, y, x1 - x0, LANE_HEIGHT, fill)
        drawn = x1


def _about(report: Report) -> str:
    run = report.run
    parts = [f"{run.world_size} ranks", run.device_name or run.device]
    named = [run.model_class, *parts] if run.model_class else parts
    return shorten(", ".join(named), ABOUT_CHARACTERS, placeholder=" ...")
