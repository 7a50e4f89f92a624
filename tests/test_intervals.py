"""Interval algebra against a set of whole nanoseconds, which cannot be wrong."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fsdpdoctor.intervals import (
    Intervals,
    clip,
    complement,
    covered_ns,
    empty,
    intersect,
    join,
    single,
    subtract,
    total_ns,
    union,
)

SPANS = st.lists(st.tuples(st.integers(-5, 40), st.integers(-5, 40)), max_size=12)


def made(spans: list[tuple[int, int]]) -> Intervals:
    """Intervals from any spans, inverted ones too."""
    table = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return union(table[:, 0], table[:, 1])


def points(a: Intervals) -> set[int]:
    """The nanoseconds that a set covers."""
    return {t for start, end in a.tolist() for t in range(start, end)}


def assert_normal(a: Intervals) -> None:
    """Ascending, disjoint, not touching, none empty."""
    assert a.dtype == np.int64
    assert (a[:, 1] > a[:, 0]).all()
    assert (a[1:, 0] > a[:-1, 1]).all()


@given(SPANS)
def test_union_covers_what_its_spans_cover(spans: list[tuple[int, int]]) -> None:
    """And its rows are in normal form."""
    a = made(spans)

    assert points(a) == {t for s, e in spans for t in range(s, e)}
    assert_normal(a)


@given(SPANS, SPANS)
def test_set_operations(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    """Intersection, difference and union are those of sets."""
    a, b = made(first), made(second)

    for actual, expected in (
        (intersect(a, b), points(a) & points(b)),
        (subtract(a, b), points(a) - points(b)),
        (join(a, b), points(a) | points(b)),
        (clip(a, 3, 17), points(a) & set(range(3, 17))),
        (complement(a, 3, 17), set(range(3, 17)) - points(a)),
    ):
        assert points(actual) == expected
        assert total_ns(actual) == len(expected)
        assert_normal(actual)


@given(SPANS, SPANS)
def test_covered_time_of_each_span(
    spans: list[tuple[int, int]], cover: list[tuple[int, int]]
) -> None:
    """Spans may overlap each other; each is answered on its own."""
    table = np.array(spans, dtype=np.int64).reshape(-1, 2)
    a = made(cover)

    actual = covered_ns(table[:, 0], table[:, 1], a)

    assert actual.tolist() == [len(points(a) & set(range(s, e))) for s, e in spans]


def test_nothing() -> None:
    """Empty sets and empty intervals are no time."""
    assert single(5, 5).tolist() == []
    assert total_ns(empty()) == 0
    assert join().tolist() == []
    assert complement(empty(), 2, 4).tolist() == [[2, 4]]
