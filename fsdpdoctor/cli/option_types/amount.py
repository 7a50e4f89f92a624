"""A number on the command line with which something is worked out."""

from __future__ import annotations

import math
from typing import Any

import click


class Amount(click.FloatRange):
    """A finite number, more than zero or at least `min`: `nan` is neither less nor more
    than any bound, and so passes every one of `click.FloatRange`.
    """

    def __init__(self, min: float | None = None) -> None:
        super().__init__(min=0.0 if min is None else min, min_open=min is None)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """The number. Fails as click's own types do."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number
