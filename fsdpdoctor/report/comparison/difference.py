"""One difference between two runs: what comparing makes, whatever it compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One setting or figure that is not the same in both runs."""

    kind: str  # "setting", "count", "time", "bytes"
    figure: str  # a JSON report's name for it
    unit: str | None
    rank: int | None = None  # of a figure in which ranks changed unlike each other
    a: Scalar
    b: Scalar
    change: float | None = None  # b - a, where they are numbers
    noise: float | None = None  # what the change had to exceed; None: it is exact


def unequal(
    kind: str, figure: str, a: object, b: object, unit: str | None = None
) -> Iterator[Difference]:
    """A difference, where there is one."""
    if a == b:
        return
    both = isinstance(a, int | float) and isinstance(b, int | float)
    yield Difference(
        kind=kind,
        figure=figure,
        unit=unit,
        a=_scalar(a),
        b=_scalar(b),
        change=float(b) - float(a) if both and kind != "setting" else None,  # type: ignore[arg-type]
    )


def _scalar(value: object) -> Scalar:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Sequence):
        return ", ".join(map(str, value))
    return str(value)
