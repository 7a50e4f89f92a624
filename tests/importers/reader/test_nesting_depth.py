"""Which row each of a thread's events takes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fsdpdoctor.importers.reader.nesting_depth import depths


def rows(*spans: tuple[int, int]) -> list[int]:
    """The depths of events, given in the order in which `depths` wants them."""
    assert list(spans) == sorted(spans, key=lambda span: (span[0], -span[1]))
    start, end = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    found: list[int] = depths(start, end).tolist()
    return found


def test_a_call_is_below_what_calls_it() -> None:
    """And beside what was called before it; what only touches is not around."""
    assert rows((0, 100), (10, 50), (10, 30), (30, 40), (50, 90), (100, 120)) == [
        *(0, 1, 2, 2, 1, 0)
    ]
    assert rows() == []


def test_what_has_no_length_is_within_what_it_lies_in() -> None:
    """Also at its begin, and two of them do not hide each other."""
    assert rows((0, 10), (0, 0), (5, 5), (5, 5), (10, 10)) == [0, 1, 1, 2, 0]


def test_what_overlaps_is_put_where_there_is_room() -> None:
    """Clocks of profilers let a child outlive its parent: none may hide another."""
    assert rows((0, 10), (5, 12), (10, 20), (11, 13), (12, 14)) == [0, 1, 0, 2, 1]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=30))
def test_no_two_of_one_row_overlap(spans: list[tuple[int, int]]) -> None:
    """Whatever a trace says."""
    ordered = sorted(((a, a + n) for a, n in spans), key=lambda s: (s[0], -s[1]))
    found = rows(*ordered)
    until: dict[int, int] = {}
    for (start, end), row in zip(ordered, found, strict=True):
        assert until.get(row, 0) <= start
        until[row] = max(end, start + 1)
    assert not found or set(found) == set(range(max(found) + 1))
