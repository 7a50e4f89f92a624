"""How deep each of a thread's events stands within the others."""

from __future__ import annotations

import numpy as np

from fsdpdoctor.importers.reader.trace_file import Int64s


def depths(start: Int64s, end: Int64s) -> Int64s:
    """The row of each event: 0 where nothing is around it. Starts ascend, and of those
    that start together the longest comes first. No two of one row overlap.

    An event without a length takes room all the same: it is within what it lies in.
    """
    taken = np.maximum(end, start + 1)
    ended = np.searchsorted(np.sort(taken), start, side="right")
    found = np.arange(len(start)) - ended
    return _lowest_free(start, taken) if _overlaps(start, taken, found) else found


def _overlaps(start: Int64s, end: Int64s, depth: Int64s) -> bool:
    """Whether events of one depth overlap: one ended after what it began in."""
    order = np.lexsort((start, depth))
    same = depth[order][1:] == depth[order][:-1]
    return bool((same & (start[order][1:] < end[order][:-1])).any())


def _lowest_free(start: Int64s, end: Int64s) -> Int64s:
    """The lowest row that is free, event by event."""
    rows: list[int] = []  # when the last of each row ends
    found = np.empty(len(start), dtype=np.int64)
    for at, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        free = (depth for depth, until in enumerate(rows) if until <= begins)
        depth = next(free, len(rows))
        rows[depth:] = [ends, *rows[depth + 1 :]]
        found[at] = depth
    return found
