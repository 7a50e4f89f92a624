"""Set algebra on sorted, disjoint time intervals.

An `Intervals` is an int64 array of shape [M, 2] whose rows are half-open
`[start, end)`, ascending, disjoint, never touching and never empty. Every
function here takes and returns such arrays; `union` makes one from anything.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]  # [M, 2]
Int64s = npt.NDArray[np.int64]  # [N]


def empty() -> Intervals:
    """No time at all."""
    return np.empty((0, 2), dtype=np.int64)


def single(start_ns: int, end_ns: int) -> Intervals:
    """One interval, or none where it would be empty."""
    if end_ns <= start_ns:
        return empty()
    return np.array([[start_ns, end_ns]], dtype=np.int64)


def union(start_ns: Int64s, end_ns: Int64s) -> Intervals:
    """When at least one of N intervals was open. Empty and inverted ones vanish."""
    keep = end_ns > start_ns
    if not keep.all():
        start_ns, end_ns = start_ns[keep], end_ns[keep]
    if len(start_ns) == 0:
        return empty()
    if not (start_ns[1:] >= start_ns[:-1]).all():
        order = np.argsort(start_ns, kind="stable")
        start_ns, end_ns = start_ns[order], end_ns[order]
    reach = np.maximum.accumulate(end_ns)
    # A row opens a new interval where it starts after everything before it ended.
    opens = np.ones(len(start_ns) + 1, dtype=np.bool_)
    np.greater(start_ns[1:], reach[:-1], out=opens[1:-1])
    return _rows(start_ns[opens[:-1]], reach[opens[1:]])


def _rows(start_ns: Int64s, end_ns: Int64s) -> Intervals:
    rows = np.empty((len(start_ns), 2), dtype=np.int64)
    rows[:, 0], rows[:, 1] = start_ns, end_ns
    return rows


def join(*parts: Intervals) -> Intervals:
    """When at least one of several sets was open."""
    rows = np.concatenate(parts) if parts else empty()
    return union(rows[:, 0], rows[:, 1])


class Pieces(NamedTuple):
    """What a set leaves of N spans: P stretches, each of one of them."""

    span: npt.NDArray[np.intp]  # [P] ascending
    start_ns: Int64s  # [P]
    end_ns: Int64s  # [P]


def pieces(start_ns: Int64s, end_ns: Int64s, a: Intervals) -> Pieces:
    """For each of N spans (they may overlap), the stretches of it that `a` covers."""
    # The rows of `a` that reach into a span are one run of `a`.
    first = np.searchsorted(a[:, 1], start_ns, side="right")
    last = np.searchsorted(a[:, 0], end_ns, side="left")
    lengths = np.maximum(last - first, 0)
    span = np.repeat(np.arange(len(start_ns)), lengths)
    within = np.arange(len(span)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    row = np.repeat(first, lengths) + within
    start = np.maximum(start_ns[span], a[row, 0])
    end = np.minimum(end_ns[span], a[row, 1])
    return Pieces(span=span, start_ns=start, end_ns=end)


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """When both sets were open."""
    if len(a) == 0 or len(b) == 0:
        return empty()
    both = pieces(a[:, 0], a[:, 1], b)
    return _rows(both.start_ns, both.end_ns)


def complement(a: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """The time of `[start_ns, end_ns)` that `a` leaves out."""
    inside = clip(a, start_ns, end_ns)
    start = np.concatenate(([start_ns], inside[:, 1]))
    end = np.concatenate((inside[:, 0], [end_ns]))
    keep = end > start
    return _rows(start[keep], end[keep])


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """When `a` was open and `b` was not."""
    if len(a) == 0 or len(b) == 0:
        return a
    return intersect(a, complement(b, int(a[0, 0]), int(a[-1, 1])))


def clip(a: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """`a` within `[start_ns, end_ns)`."""
    if len(a) and start_ns <= a[0, 0] and a[-1, 1] <= end_ns:
        return a
    return intersect(a, single(start_ns, end_ns))


def total_ns(a: Intervals) -> int:
    """The time that a set covers."""
    return int((a[:, 1] - a[:, 0]).sum())


def covered_ns(start_ns: Int64s, end_ns: Int64s, a: Intervals) -> Int64s:
    """For each of N spans (they may overlap), how much of it `a` covers."""
    if len(a) == 0:
        return np.zeros(len(start_ns), dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(a[:, 1] - a[:, 0])))

    def open_until(t: Int64s) -> Int64s:
        row = np.searchsorted(a[:, 0], t, side="right")
        inside = np.where(row > 0, np.minimum(t, a[row - 1, 1]) - a[row - 1, 0], 0)
        return np.where(row > 0, before[row - 1] + inside, 0).astype(np.int64)

    return np.where(end_ns > start_ns, open_until(end_ns) - open_until(start_ns), 0)
