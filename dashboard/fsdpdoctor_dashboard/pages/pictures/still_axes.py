"""The axes of a figure as plotly lays them out, for a still picture of it.

Ticks are chosen by plotly's own rules, so that nothing moves when its chart takes the
still's place. How wide a window is, is not known here: as wide as most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

WIDTH = 1200
"""Pixels of a figure across, about."""
CATEGORY_PIXELS = 14.4
"""Between the names of an axis, at least: plotly's, of letters 12 pixels high."""
TICK_PIXELS = {"x": 80, "y": 40}
"""Between the numbers of an axis, about."""
FEWEST_TICKS, MOST_TICKS = 5, 10
STEPS = (2, 5, 10)
"""Of a power of ten: the distance between ticks."""
MINUS = "\u2212"


class NoStillError(Exception):
    """A figure has something that is not drawn without plotly."""


class Tick(NamedTuple):
    """A word beside an axis, and at what share of it."""

    share: float
    words: str


class Axis(NamedTuple):
    """One axis: from where to where it goes, or its names."""

    name: str  # xaxis, xaxis2, ...
    domain: tuple[float, float]
    low: float
    high: float
    pixels: float
    log: bool = False
    names: tuple[str, ...] = ()
    reversed: bool = False
    title: str = ""
    shown: bool = True  # its ticks' words
    given: Any = None  # plotly's axis

    def share(self, value: object) -> float:
        """How far along the axis a value is, from its beginning on the left or below;
        of a reversed one from the top.
        """
        if self.names:
            return (self.names.index(str(value)) + 0.5) / len(self.names)
        at = float(value)  # type: ignore[arg-type]
        if self.log:
            at = math.log10(at) if at > 0 else -math.inf
        return (at - self.low) / (self.high - self.low)

    @property
    def room(self) -> float:
        """The share of one name."""
        return 1 / max(1, len(self.names))

    def ticks(self) -> list[Tick]:
        """What stands beside it."""
        given = self.given
        if self.names:
            return self._named()
        if given.tickvals is not None:
            pairs = zip(given.tickvals, given.ticktext, strict=True)
            found = [Tick(self.share(at), str(words)) for at, words in pairs]
            return [tick for tick in found if -1e-9 <= tick.share <= 1 + 1e-9]
        if self.log:
            raise NoStillError("a logarithmic axis without ticks of its own")
        values = numbers(self.low, self.high, self._count(), given.dtick)
        return [Tick(self.share(value), words) for value, words in values]

    def _count(self) -> float:
        about = self.pixels / TICK_PIXELS[self.name[0]]
        return min(max(about, FEWEST_TICKS - 1), MOST_TICKS - 1) + 1

    def _named(self) -> list[Tick]:
        most = self.given.nticks or self.pixels / CATEGORY_PIXELS
        every = self.given.dtick or max(1, math.ceil(len(self.names) / max(most, 1)))
        return [Tick(self.share(name), name) for name in self.names[:: int(every)]]


def numbers(
    low: float, high: float, count: float, step: float | None = None
) -> list[tuple[float, str]]:
    """Round numbers between two, about so many, and their words."""
    if step is None:
        rough = (high - low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        step = power * next(each for each in STEPS if rough / power <= each + 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    values = [round(at * step, 12) + 0.0 for at in range(first, last + 1)]
    return [(value, _number(value, digits)) for value in values]


def _number(value: float, digits: int) -> str:
    """As plotly writes it: no noughts at the end, thousands without commas below ten
    of them, and a real minus.
    """
    words = f"{abs(value):.{digits}f}"
    if "." in words:
        words = words.rstrip("0").rstrip(".")
    return f"{MINUS}{words}" if value < 0 else words


def axis_of(figure: Any, name: str, values: Sequence[Any]) -> Axis:
    """The axis of such a name (`x`, `y2`); `values` are all that stand on it."""
    full = f"{name[0]}axis{name[1:]}"
    given = figure.layout[full]
    if given.type == "multicategory":
        raise NoStillError("names in two rows")
    domain = tuple(given.domain or (0, 1))
    sides = figure.layout.margin
    whole = (
        WIDTH - sides.l - sides.r
        if name[0] == "x"
        else figure.layout.height - sides.t - sides.b
    )
    names: tuple[str, ...] = ()
    low, high = 0.0, 1.0
    if given.type == "category" or any(isinstance(each, str) for each in values[:1]):
        names = tuple(dict.fromkeys(map(str, values)))
    elif given.range is None:
        raise NoStillError("an axis whose range plotly chooses")
    else:
        low, high = map(float, given.range)
    return Axis(
        name=full,
        domain=(float(domain[0]), float(domain[1])),
        low=low,
        high=high,
        pixels=whole * (domain[1] - domain[0]),
        log=given.type == "log",
        names=names,
        reversed=given.autorange == "reversed",
        title=given.title.text or "",
        shown=given.showticklabels is not False,
        given=given,
    )
