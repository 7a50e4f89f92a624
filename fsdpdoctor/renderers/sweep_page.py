"""A sweep as a page: speed against memory, and the table. No script, no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from fsdpdoctor.planning.sweep import Outcome, best, front
from fsdpdoctor.quantities import GIB
from fsdpdoctor.renderers.html import CONTENT_SECURITY_POLICY
from fsdpdoctor.renderers.html_style import STYLE
from fsdpdoctor.renderers.sweep import Sweep, figures

_STYLE = """
svg { width: 100%; height: auto; max-width: 900px; display: block; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg .axis { stroke: var(--line); }
svg .limit { stroke: var(--exposed); stroke-dasharray: 4 4; }
svg .front { stroke: var(--info); fill: none; stroke-width: 1.5; }
svg circle { fill: var(--bar); stroke: var(--info); }
svg circle.best { fill: var(--info); r: 7px; }
svg circle.out { fill: none; stroke: var(--soft); stroke-dasharray: 2 2; }
svg .label { fill: var(--ink); }
tr.out td { color: var(--soft); }
"""

_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    f'content="{escape(CONTENT_SECURITY_POLICY)}">'
)

WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 80, 30, 20, 50


def sweep_page(sweep: Sweep) -> str:
    """The whole page."""
    title = f"{sweep.script} on {sweep.device}"
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            _POLICY,
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>fsdpdoctor: {escape(title)}</title>",
            f"<style>{STYLE}{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}, rehearsed</h1>",
            "<p>Time was modelled: no kernel ran.</p>",
            *_picture(sweep),
            *_commands(sweep),
            *_table(sweep),
            "</body></html>\n",
        )
    )


def _picture(sweep: Sweep) -> Iterator[str]:
    known = [o for o in sweep.outcomes if o.with_room_per_second and _gib(o)]
    if not any(o.per_second for o in known):
        yield "<p>No configuration has a speed and a memory to be drawn.</p>"
        return
    plot = _Plot(known)
    unit = sweep.unit.capitalize()
    yield f"<h2>{unit} per second of a device against memory</h2>"
    yield f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Pareto plot">'
    yield from plot.axes()
    yield plot.line(front(sweep.outcomes))
    chosen = [id(one) for one in best(sweep.outcomes)]
    for one in sorted(known, key=lambda o: id(o) in chosen):
        yield plot.point(one, chosen.index(id(one)) + 1 if id(one) in chosen else 0)
    yield "</svg>"
    yield (
        "<p class='facts'>On the line: nothing faster takes as little memory. Grey: "
        "does not fit, and would be as fast if it did.</p>"
    )


def _gib(one: Outcome) -> float:
    """Reserved, and needed where it does not fit."""
    needed = 0 if one.fits else one.needed_bytes or 0
    return max(one.reserved_bytes or 0, needed) / GIB


class _Plot:
    """Memory to the right, speed upwards."""

    def __init__(self, drawn: Sequence[Outcome]) -> None:
        rooms = [o.room_bytes / GIB for o in drawn if o.room_bytes]
        self._room = max(rooms, default=None)
        self._most_gib = max([*map(_gib, drawn), self._room or 0]) * 1.03
        speeds = [o.with_room_per_second or 0 for o in drawn]
        self._least, self._most = 0.9 * min(speeds), 1.05 * max(speeds)

    def x(self, gib: float) -> float:
        return LEFT + gib / self._most_gib * (WIDTH - LEFT - RIGHT)

    def y(self, speed: float) -> float:
        up = (speed - self._least) / (self._most - self._least)
        return HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def axes(self) -> Iterator[str]:
        bottom = HEIGHT - BOTTOM
        yield _segment("axis", (LEFT, bottom), (WIDTH - RIGHT, bottom))
        yield _segment("axis", (LEFT, TOP), (LEFT, bottom))
        for i in range(5):
            gib = self._most_gib * i / 4
            speed = self._least + (self._most - self._least) * i / 4
            yield _text((self.x(gib), bottom + 18), f"{gib:.0f}", "middle")
            yield _text((LEFT - 8, self.y(speed) + 4), f"{speed:,.0f}", "end")
        yield _text((WIDTH / 2, HEIGHT - 8), "GiB", "middle")
        if self._room is not None:
            at = self.x(self._room)
            yield _segment("limit", (at, TOP), (at, bottom))
            words = f"the device has {self._room:.1f} GiB"
            yield _text((at - 6, bottom - 8), words, "end")

    def line(self, outcomes: Sequence[Outcome]) -> str:
        points = sorted((_gib(o), o.per_second or 0) for o in outcomes)
        drawn = " ".join(f"{self.x(g):.1f},{self.y(s):.1f}" for g, s in points)
        return f'<polyline class="front" points="{drawn}"/>'

    def point(self, one: Outcome, place: int) -> str:
        x, y = self.x(_gib(one)), self.y(one.with_room_per_second or 0)
        fact = f"{one.per_second:,.0f} {one.unit}/s" if one.per_second else one.reason
        said = escape(f"{_named(one)}: {fact}")
        kind = "best" if place else "fits" if one.fits else "out"
        # Side by side: the best are often near one another.
        at = (x + (place - 2) * 12, y - 12)
        label = _text(at, str(place), "middle", "label") if place else ""
        return (
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5">'
            f"<title>{said}</title></circle>{label}"
        )


def _segment(kind: str, a: tuple[float, float], b: tuple[float, float]) -> str:
    return (
        f'<line class="{kind}" x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" '
        f'y2="{b[1]:.1f}"/>'
    )


def _text(at: tuple[float, float], words: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return (
        f'<text{named} x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def _named(one: Outcome) -> str:
    return ", ".join(f"{name} {value}" for name, value in one.choice.items())


def _commands(sweep: Sweep) -> Iterator[str]:
    chosen = best(sweep.outcomes)
    if not chosen:
        return
    yield "<h2>The best, as a command each</h2>"
    for number, one in enumerate(chosen, 1):
        yield f"<p>{number}. {escape(_named(one))}</p>"
        yield f"<pre>{escape(' '.join(one.command))}</pre>"


def _table(sweep: Sweep) -> Iterator[str]:
    names = list(sweep.outcomes[0].choice) if sweep.outcomes else []
    heads = [*names, f"{sweep.unit}/s a device", "step", "reserved GiB"]
    if sweep.price_per_hour is not None:
        heads.append(f"price of a million {sweep.unit}")
    yield "<h2>Every configuration</h2><div class='scroll'><table><thead><tr>"
    yield "".join(f"<th>{escape(head)}</th>" for head in heads)
    yield "<th class='left'></th></tr></thead><tbody>"
    for one in sweep.ordered:
        cells = [*one.choice.values(), *figures(one)]
        if sweep.price_per_hour is not None:
            price = sweep.price(one)
            cells.append("" if price is None else f"{price:.3f}")
        why = one.reason or ("tight" if one.tight else "")
        row = "" if one.usable else ' class="out"'
        drawn = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        yield f"<tr{row}>{drawn}<td class='left'>{escape(why)}</td></tr>"
    yield "</tbody></table></div>"
