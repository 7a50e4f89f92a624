"""Spans that nest or overlap -> disjoint pieces of time, each with its owner."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.intervals import Int64s, Intervals, complement, union


class Pieces(NamedTuple):
    """Disjoint, ascending stretches of time, each with the span that owns it."""

    start_ns: Int64s  # [P]
    end_ns: Int64s  # [P]
    owner: npt.NDArray[np.intp]  # [P]


# Real lanes nest two to five deep. Deeper ones cost one pass per level here, and
# a Python loop over the spans is then the cheaper way.
_DEEPEST = 16


def innermost(start_ns: Int64s, end_ns: Int64s) -> Pieces:
    """Who owns each moment of N spans that may nest or overlap: of those open the
    one that started last. The pieces cover exactly the union of the spans.

    Spans without length own no time and are absent.
    """
    long = np.flatnonzero(end_ns > start_ns)
    order = long[np.lexsort((-end_ns[long], start_ns[long]))]
    start, end = start_ns[order], end_ns[order]
    if len(order) == 0 or (start[1:] >= np.maximum.accumulate(end)[:-1]).all():
        return Pieces(start, end, order)
    depth = np.arange(len(start)) - np.searchsorted(np.sort(end), start, "right")
    levels = [np.flatnonzero(depth == d) for d in range(int(depth.max()) + 1)]
    nested = len(levels) <= _DEEPEST and all(
        (start[level][1:] >= end[level][:-1]).all() for level in levels
    )
    pieces = _by_level(start, end, levels) if nested else _by_sweep(start, end)
    ascending = np.argsort(pieces.start_ns, kind="stable")
    return Pieces(
        pieces.start_ns[ascending],
        pieces.end_ns[ascending],
        order[pieces.owner[ascending]],
    )


def _by_level(start: Int64s, end: Int64s, levels: list[npt.NDArray[np.intp]]) -> Pieces:
    """Nested spans: from the deepest level up, each takes what is still free."""
    taken = np.empty((0, 2), dtype=np.int64)
    lowest, highest = int(start[0]), int(end.max())
    parts: list[Pieces] = []
    for level in reversed(levels):
        free = complement(taken, lowest, highest)
        parts.append(within(Pieces(start[level], end[level], level), free))
        taken = union(
            np.concatenate((taken[:, 0], start[level])),
            np.concatenate((taken[:, 1], end[level])),
        )
    whole = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    return Pieces(whole[0], whole[1], whole[2])


def within(pieces: Pieces, free: Intervals) -> Pieces:
    """What lies in `free` of each piece."""
    first = np.searchsorted(free[:, 1], pieces.start_ns, "right")
    last = np.searchsorted(free[:, 0], pieces.end_ns, "left")
    lengths = np.maximum(last - first, 0)
    of_piece = np.repeat(np.arange(len(lengths)), lengths)
    offsets = np.repeat(np.cumsum(lengths) - lengths, lengths)
    of_free = np.repeat(first, lengths) + np.arange(len(of_piece)) - offsets
    return Pieces(
        np.maximum(pieces.start_ns[of_piece], free[of_free, 0]),
        np.minimum(pieces.end_ns[of_piece], free[of_free, 1]),
        pieces.owner[of_piece],
    )


def _by_sweep(start: Int64s, end: Int64s) -> Pieces:
    """Spans that overlap in any way, one by one."""
    starts, ends = start.tolist(), end.tolist()
    waiting: list[int] = []  # a heap of negated rows: the latest start first
    cuts: list[tuple[int, int, int]] = []
    now = starts[0]
    for row, begin in enumerate([*starts, max(ends)]):
        while waiting and now < begin:
            top = -waiting[0]
            if ends[top] <= now:
                heapq.heappop(waiting)
                continue
            until = min(ends[top], begin)
            cuts.append((now, until, top))
            now = until
        now = begin
        heapq.heappush(waiting, -row)
    columns = np.array(cuts, dtype=np.int64).reshape(-1, 3)
    return Pieces(columns[:, 0], columns[:, 1], columns[:, 2].astype(np.intp))
