"""What is asked of a column of numbers: the answers are numpy's own."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from fsdpdoctor.schema import (
    distinct,
    distinct_rows,
    median,
    numbered,
    one_of,
    percentiles,
)

RANDOM = np.random.default_rng(7)
COLUMNS = [
    *(RANDOM.integers(-(10**exponent), 10**exponent, 31) for exponent in range(1, 16)),
    *(RANDOM.integers(0, 5, count) for count in range(1, 12)),
    *(RANDOM.random(count) * 1e9 for count in range(1, 12)),
]


@pytest.mark.parametrize("column", COLUMNS, ids=range(len(COLUMNS)))
def test_a_column_is_asked_as_numpy_would_be(column: np.ndarray) -> None:
    """Distinct values, the median and percentiles are numpy's to the last bit."""
    assert distinct(column).tolist() == np.unique(column).tolist()
    assert median(column) == np.median(column)
    percents = (0, 5, 25, 50, 75, 95, 99, 100)
    assert percentiles(column, percents).tolist() == (
        np.percentile(column, percents).tolist()
    )


@pytest.mark.parametrize(
    "column",
    [
        np.array([7, 3, 3, -1, 7, 4], dtype=np.int32),
        np.array([127, -128, 0] * 200, dtype=np.int8),
        np.array([10**17, -5, 10**17]),
        np.empty(0, dtype=np.int64),
    ],
    ids=["close", "narrow", "far", "none"],
)
def test_each_row_has_the_number_of_its_value(column: np.ndarray) -> None:
    """Whether values lie close together or far apart, as numpy numbers them."""
    values, which = numbered(column)
    expected, at = np.unique(column, return_inverse=True)
    assert (values.tolist(), which.tolist()) == (expected.tolist(), at.tolist())


def test_nothing_has_no_median_and_beside_a_nan_nothing_is_known() -> None:
    """Where numpy warns and says NaN, NaN is said."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(median([]))
        assert math.isnan(median([1.0, math.nan, 2.0]))
        assert np.isnan(percentiles(np.array([1.0, math.nan]), (25, 75))).tolist() == [
            True,
            True,
        ]
    assert distinct(np.empty(0, dtype=np.int64)).tolist() == []


@pytest.mark.parametrize(
    "values",
    [
        [],
        [3],
        [3, 3, -1],
        range(-3, 9),  # one by one is too slow, a table is small
        [10**15 * value for value in range(-20, 20)],  # a table would be large
        [*range(9), 10**17],
    ],
    ids=["none", "one", "some", "many", "far", "one-far"],
)
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_a_column_has_one_of_some_numbers(
    values: list[int], dtype: type[np.signedinteger]
) -> None:
    """Where it has any of them, whatever they are and however many."""
    column = np.array([-3, -1, 0, 3, 8, 9, 100, 3], dtype=dtype)
    wanted = set(values)
    expected = [value in wanted for value in column.tolist()]
    assert one_of(column, list(values)).tolist() == expected
    assert one_of(column[:0], list(values)).tolist() == []


def test_rows_of_columns_are_each_told_once() -> None:
    """In the order of the first column, then of the next."""
    rows = distinct_rows(np.array([2, 1, 2, 1]), np.array([5, 9, 5, -1]))
    assert rows == [(1, -1), (1, 9), (2, 5)]
