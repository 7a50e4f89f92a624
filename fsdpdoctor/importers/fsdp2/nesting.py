"""Which of some nested host events is innermost, by thread and time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fsdpdoctor.importers.reader.trace_file import Events, Int64s, RowIds
from fsdpdoctor.schema import UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Thread:
    since_ns: Int64s
    index: Int64s  # what is innermost from since_ns on, or UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nesting:
    """Some events of the host, nested as they were."""

    rows: Int64s  # [N] in Events, by start
    parents: Int64s  # [N] index of the event around each, UNKNOWN at the top
    threads: dict[int, _Thread]

    def innermost(self, tid: Int64s, time_ns: Int64s) -> Int64s:
        """For each of M moments on a thread, an index into `rows`, or UNKNOWN."""
        found = np.full(len(time_ns), UNKNOWN, dtype=np.int64)
        for thread_id, thread in self.threads.items():
            here = tid == thread_id
            at = np.searchsorted(thread.since_ns, time_ns[here], side="right") - 1
            found[here] = np.where(at >= 0, thread.index[at], UNKNOWN)
        return found


def nest(events: Events, wanted: RowIds) -> Nesting:
    """Nest the events of some rows, which ascend."""
    rows = wanted.astype(np.int64)
    # Of events that start together, the longer is outside.
    rows = rows[np.lexsort((-events.duration_ns[rows], events.start_ns[rows]))]
    starts = events.start_ns[rows].tolist()
    ends = events.ends(rows).tolist()
    tids = events.tid[rows].tolist()
    open_on = {tid: _Open() for tid in dict.fromkeys(tids)}
    parents = [
        open_on[tid].enter(i, start, end)
        for i, (start, end, tid) in enumerate(zip(starts, ends, tids, strict=True))
    ]
    return Nesting(
        rows=rows,
        parents=np.array(parents, dtype=np.int64),
        threads={tid: one.finish() for tid, one in open_on.items()},
    )


class _Open:
    """The events that are open on one thread, while time goes on."""

    def __init__(self) -> None:
        self._stack: list[tuple[int, int]] = []  # index, end
        self._since: list[int] = []
        self._index: list[int] = []

    def enter(self, index: int, start_ns: int, end_ns: int) -> int:
        """Open an event; the one around it, or UNKNOWN."""
        stack = self._stack
        if stack and stack[-1][1] <= start_ns:
            self._close_until(start_ns)
        parent = UNKNOWN
        if stack:  # a clock's jitter must not let a child outlive its parent
            parent, latest_ns = stack[-1]
            end_ns = min(end_ns, latest_ns)
        stack.append((index, end_ns))
        self._since.append(start_ns)
        self._index.append(index)
        return parent

    def _close_until(self, time_ns: int) -> None:
        stack = self._stack
        while stack and stack[-1][1] <= time_ns:
            self._since.append(stack.pop()[1])
            self._index.append(stack[-1][0] if stack else UNKNOWN)

    def finish(self) -> _Thread:
        """The thread's whole record."""
        if self._stack:
            self._close_until(self._stack[0][1])  # which no event in it outlives
        return _Thread(
            since_ns=np.array(self._since, dtype=np.int64),
            index=np.array(self._index, dtype=np.int64),
        )
