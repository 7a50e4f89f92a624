"""Rows of one step, kept as plain integers until the step ends.

A hook in the middle of somebody's step must not build objects: a span is
seventeen integers added to one flat list, and numpy sees them once per step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    Activity,
    CallSites,
    Counters,
    Kind,
    Lane,
    MemorySamples,
    Phase,
    Spans,
    StackSamples,
    Within,
)
from fsdpdoctor.schema.string_table import StringTable

Int64s = npt.NDArray[np.int64]
Resolve = Callable[[Int64s], Int64s]
"""Turns a clock's ticks into times, see `clocks.Clock`."""

What = TypeVar("What", Within, Activity)

_SPAN_COLUMNS = tuple(Spans.columns())
_MEMORY_COLUMNS = tuple(MemorySamples.columns())
_WIDTH = len(_SPAN_COLUMNS)


Columns = dict[str, Int64s]
"""A table's columns, whose times may still be ticks."""


def spans_of(columns: Columns, resolve: Resolve) -> Spans:
    """The table of detached spans, once their ticks are ready."""
    columns = dict(columns)
    start, end = resolve(columns["start_ns"]), resolve(columns["end_ns"])
    columns["start_ns"] = start
    # Two events of one moment may resolve a few nanoseconds out of order.
    columns["end_ns"] = np.where(end == NO_TIME, end, np.maximum(end, start))
    spans = Spans(**columns)  # type: ignore[arg-type]
    # A tick that the clock has given up is no time, and no number is made up.
    known = (spans.start_ns != NO_TIME) & (spans.end_ns != NO_TIME)
    return spans if known.all() else spans.rows(known)


class SpanBuffer:
    """Spans in the order in which they ended. Times are ticks of a clock."""

    def __init__(self) -> None:
        self._cells: list[int] = []
        self._phase_of_op: dict[int, int] = {}
        self._micro_batch_of_op: dict[int, int] = {}
        self._flags_of_op: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._cells) // _WIDTH

    @property
    def kinds(self) -> set[int]:
        """The kinds of the spans that are here."""
        return set(self._cells[::_WIDTH])

    def add(
        self,
        kind: Kind,
        lane: Lane,
        phase: int,
        flags: int,
        micro_batch: int,
        unit: int,
        start: int,
        end: int,
        op: int = UNKNOWN,
        by_unit: int = UNKNOWN,
        issued: int = NO_TIME,
        size: int = UNKNOWN,
        group: int = UNKNOWN,
        seq: int = UNKNOWN,
        name: int = UNKNOWN,
        value: int = UNKNOWN,
    ) -> None:
        """Append one span. The order of the tuple is the order of `Spans`."""
        self._cells.extend(
            (
                kind,
                lane,
                phase,
                flags,
                micro_batch,
                unit,
                by_unit,
                op,
                start,
                end,
                issued,
                size,
                group,
                seq,
                UNKNOWN,  # stream: a live record knows lanes, not stream numbers
                name,
                value,
            )
        )

    def learn_use(self, op: int, phase: int, micro_batch: int) -> None:
        """Say which pass an unshard turned out to be for, when it was manual."""
        self._phase_of_op[op] = phase
        self._micro_batch_of_op[op] = micro_batch

    def learn_flag(self, op: int, flag: int) -> None:
        """Say more of an unshard whose spans are already here."""
        self._flags_of_op[op] = self._flags_of_op.get(op, 0) | flag

    def detach(self, rows: int, of_pass: dict[int, int]) -> Columns:
        """Remove the first spans; their times are still ticks. Their passes become
        the micro-batches that these were found to belong to.
        """
        cells = np.array(self._cells[: rows * _WIDTH], dtype=np.int64)
        del self._cells[: rows * _WIDTH]
        columns = dict(zip(_SPAN_COLUMNS, cells.reshape(-1, _WIDTH).T, strict=True))
        self._apply_learned(columns)
        passes, at = np.unique(columns["micro_batch"], return_inverse=True)
        found = [of_pass.get(one, UNKNOWN) for one in passes.tolist()]
        columns["micro_batch"] = np.array(found, dtype=np.int64)[at]
        return columns

    def drop(self, rows: int) -> None:
        """Forget the first spans."""
        del self._cells[: rows * _WIDTH]

    def _apply_learned(self, columns: Columns) -> None:
        op = columns["op"]
        for learned, phase in self._phase_of_op.items():
            columns["phase"][op == learned] = phase
        for learned, micro_batch in self._micro_batch_of_op.items():
            columns["micro_batch"][op == learned] = micro_batch
        for learned, flags in self._flags_of_op.items():
            columns["flags"][op == learned] |= flags
        if len(self) == 0:
            self._phase_of_op.clear()
            self._micro_batch_of_op.clear()
            self._flags_of_op.clear()


class MemoryBuffer:
    """Memory samples of the step."""

    def __init__(self) -> None:
        self._cells: list[int] = []

    def add(
        self,
        time: int,
        unit: int,
        phase: Phase,
        allocated: int = UNKNOWN,
        reserved: int = UNKNOWN,
        peak: int = UNKNOWN,
        unsharded: int = UNKNOWN,
        rss: int = UNKNOWN,
    ) -> None:
        """Append one sample. The order of the tuple is that of `MemorySamples`."""
        self._cells.extend(
            (time, unit, phase, allocated, reserved, peak, unsharded, rss)
        )

    def __len__(self) -> int:
        return len(self._cells) // len(_MEMORY_COLUMNS)

    def detach(self, rows: int) -> Columns:
        """Remove the first samples; their times are still ticks."""
        cells = rows * len(_MEMORY_COLUMNS)
        table = np.array(self._cells[:cells], dtype=np.int64)
        del self._cells[:cells]
        columns = table.reshape(-1, len(_MEMORY_COLUMNS)).T
        return dict(zip(_MEMORY_COLUMNS, columns, strict=True))


class CounterBuffer:
    """Counters of the step. Their times are host times."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int]] = []

    def add(self, name: int, time_ns: int, value: int) -> None:
        """Append one value; `name` is the id of a name."""
        self._rows.append((name, time_ns, value))

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, rows: int) -> Counters:
        """Remove the first values and return them."""
        table = np.array(self._rows[:rows], dtype=np.int64).reshape(-1, 3)
        del self._rows[:rows]
        return Counters.build(
            len(table), name=table[:, 0], time_ns=table[:, 1], value=table[:, 2]
        )


class _PlaceBuffer(Generic[What]):
    """Places in the script. Strings until the step ends: other threads add, too, and
    the table of names is the training thread's.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, What, str, str]] = []

    def add(self, of: int, what: What, place: str, via: str) -> None:
        """Append one row."""
        self._rows.append((of, what, place, via))

    def __len__(self) -> int:
        return len(self._rows)

    def drop(self, rows: int) -> None:
        """Forget the first rows."""
        del self._rows[:rows]

    def _take(self, rows: int) -> list[tuple[int, What, str, str]]:
        taken = self._rows[:rows]
        self.drop(rows)
        return taken


class CallSiteBuffer(_PlaceBuffer[Within]):
    """Who issued collectives, by op."""

    def take(self, rows: int, names: StringTable) -> CallSites:
        """Remove the first calls and return them."""
        taken = self._take(rows)
        return CallSites.build(
            len(taken),
            op=[row[0] for row in taken],
            within=[row[1] for row in taken],
            site=[names.id(row[2]) for row in taken],
            via=[names.id(row[3]) for row in taken],
        )


class StackBuffer(_PlaceBuffer[Activity]):
    """Where the training thread was, by host time."""

    def take(self, rows: int, names: StringTable) -> StackSamples:
        """Remove the first samples and return them."""
        taken = self._take(rows)
        return StackSamples.build(
            len(taken),
            time_ns=[row[0] for row in taken],
            activity=[row[1] for row in taken],
            site=[names.id(row[2]) for row in taken],
            via=[names.id(row[3]) for row in taken],
        )
