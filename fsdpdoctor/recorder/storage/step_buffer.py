"""Rows of one step, kept as bytes until the step ends.

A hook in the middle of somebody's step must not build objects: a span is seventeen
integers packed into one block of memory, which numpy sees once per step. A list of
integers would be as quick to fill, but not to read: each is an object of its own,
which has left the processor's caches by then.
"""

from __future__ import annotations

import struct
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


def _micro_batches(passes: Int64s, of_pass: dict[int, int]) -> Int64s:
    """Those of passes, UNKNOWN where one has none."""
    if not of_pass:
        return np.full_like(passes, UNKNOWN)
    first = min(of_pass)
    found = np.full(max(of_pass) - first + 3, UNKNOWN)  # one more at either end
    found[np.array([*of_pass]) - (first - 1)] = [*of_pass.values()]
    known: Int64s = found[np.clip(passes - (first - 1), 0, len(found) - 1)]
    return known


class _Rows:
    """Rows of 64-bit integers. A row is added in one call, which another thread, or a
    garbage collection that is recorded itself, comes before or after.
    """

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns
        row = struct.Struct(f"{len(columns)}q")
        self._bytes = row.size  # of a row
        self._block = bytearray()
        self.packed = row.pack
        self.append = self._block.extend

    def __len__(self) -> int:
        return len(self._block) // self._bytes

    def take(self, rows: int) -> Columns:
        """Remove the first rows; each column is an array of its own."""
        table = np.frombuffer(bytes(self._block[: rows * self._bytes]), dtype=np.int64)
        self.drop(rows)
        columns = table.reshape(-1, len(self._columns)).T.copy()
        return dict(zip(self._columns, columns, strict=True))

    def drop(self, rows: int) -> None:
        """Forget the first rows."""
        del self._block[: rows * self._bytes]

    def column(self, at: int) -> Int64s:
        """One column of all rows."""
        values = np.frombuffer(bytes(self._block), dtype=np.int64)
        return values[at :: len(self._columns)]


class SpanBuffer:
    """Spans in the order in which they ended. Times are ticks of a clock."""

    def __init__(self) -> None:
        self._rows = _Rows(_SPAN_COLUMNS)
        self._phase_of_op: dict[int, int] = {}
        self._micro_batch_of_op: dict[int, int] = {}
        self._flags_of_op: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def kinds(self) -> set[int]:
        """The kinds of the spans that are here."""
        return set(self._rows.column(0).tolist())

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
        rows = self._rows
        row = rows.packed(
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
        rows.append(row)

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
        columns = self._rows.take(rows)
        self._apply_learned(columns)
        columns["micro_batch"] = _micro_batches(columns["micro_batch"], of_pass)
        return columns

    def drop(self, rows: int) -> None:
        """Forget the first spans."""
        self._rows.drop(rows)

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
        self._rows = _Rows(_MEMORY_COLUMNS)

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
        rows = self._rows
        row = rows.packed(
            time,
            unit,
            phase,
            allocated,
            reserved,
            peak,
            unsharded,
            rss,
        )
        rows.append(row)

    def __len__(self) -> int:
        return len(self._rows)

    def detach(self, rows: int) -> Columns:
        """Remove the first samples; their times are still ticks."""
        return self._rows.take(rows)


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
        if not rows:
            return Counters.empty()
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
        if not taken:
            return CallSites.empty()
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
        if not taken:
            return StackSamples.empty()
        return StackSamples.build(
            len(taken),
            time_ns=[row[0] for row in taken],
            activity=[row[1] for row in taken],
            site=[names.id(row[2]) for row in taken],
            via=[names.id(row[3]) for row in taken],
        )
