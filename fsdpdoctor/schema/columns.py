"""What is asked of a column of numbers.

numpy answers it as well, and imports its masked arrays for it: some 25 ms of
processor time of each command, for arrays that nobody here has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

FEW = 8
"""Numbers that are compared one by one."""

_Value = TypeVar("_Value", bound=np.generic)


def distinct(column: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
    """Its values, each once, ascending."""
    values = np.sort(column)
    first = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def numbered(
    column: npt.NDArray[np.integer],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp]]:
    """Its distinct values, ascending, and for each row which of them it has."""
    least = int(column.min(initial=0))
    if int(column.max(initial=0)) - least >= len(column):
        values, which = np.unique(column, return_inverse=True)
        return values.astype(np.int64), which
    at = column - np.intp(least)  # ids lie close together: no need to sort
    seen = np.bincount(at) > 0
    return np.flatnonzero(seen) + least, (np.cumsum(seen) - 1)[at]


def distinct_rows(
    *columns: npt.NDArray[np.integer | np.bool_],
) -> list[tuple[int, ...]]:
    """What stands side by side in some columns, each once, ascending."""
    return sorted(set(zip(*(column.tolist() for column in columns), strict=True)))


def one_of(
    column: npt.NDArray[np.integer], values: npt.ArrayLike
) -> npt.NDArray[np.bool_]:
    """Where it has one of some numbers."""
    wanted = np.sort(np.asarray(values, dtype=np.int64))
    if len(wanted) <= FEW:
        found = np.zeros(len(column), dtype=np.bool_)
        for value in wanted.tolist():
            found |= column == value
        return found
    if int(wanted[-1]) - int(wanted[0]) < len(column):
        return np.isin(column, wanted)  # which has a table for these
    at = np.searchsorted(wanted, column)
    at[at == len(wanted)] = 0
    same: npt.NDArray[np.bool_] = wanted[at] == column
    return same


def median(column: npt.ArrayLike) -> float:
    """The middle of its values, or of the two in the middle; of none, and beside a
    NaN, NaN.
    """
    values = np.sort(np.asarray(column))
    if not len(values) or values[-1] != values[-1]:
        return math.nan
    low, high = values[(len(values) - 1) // 2], values[len(values) // 2]
    return (float(low) + float(high)) / 2


def percentiles(
    column: npt.NDArray[Any], percents: Sequence[float]
) -> npt.NDArray[np.float64]:
    """[len(percents)] what so many percent of a column's values do not exceed; between
    two values in proportion. The column is not empty; beside a NaN nothing is known.
    """
    values = np.sort(column)
    if values[-1] != values[-1]:
        return np.full(len(percents), np.nan)
    at = np.asarray(percents, dtype=np.float64) / 100 * (len(values) - 1)
    below = np.floor(at).astype(np.intp)
    above = np.minimum(below + 1, len(values) - 1)
    share, step = at - below, (values[above] - values[below]).astype(np.float64)
    # From the nearer of the two: the last digit is then the one that numpy gives.
    up: npt.NDArray[np.float64]
    up, down = values[below] + step * share, values[above] - step * (1 - share)
    return np.where(share < 0.5, up, down)
