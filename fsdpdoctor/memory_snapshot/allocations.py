"""A device's history becomes its allocations, and what was held after each event.

Memory is held from its `alloc` to its `free_completed`: between `free_requested` and
that another stream still uses it. Sizes are as asked for, before the allocator rounds
them up: a history has no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.memory_snapshot.snapshot import (
    NOT_RECORDED,
    Action,
    Block,
    BlockState,
    History,
    Segment,
)

BEFORE = -1
"""The event of what was there before the history began."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Allocations:
    """All that a device held at some time, A rows, and its totals after N events."""

    begin: npt.NDArray[np.int64]  # [A], event; BEFORE: before the first
    requested_end: npt.NDArray[np.int64]  # [A], event of free_requested; N: none
    end: npt.NDArray[np.int64]  # [A], event of free_completed; N: still held
    size_bytes: npt.NDArray[np.int64]  # [A]
    stream: npt.NDArray[np.int64]  # [A]
    stack: npt.NDArray[np.int32]  # [A], NOT_RECORDED where there is none
    free_stack: npt.NDArray[np.int32]  # [A], of what freed it
    metadata: npt.NDArray[np.int32]  # [A]
    held_bytes: npt.NDArray[np.int64]  # [N + 1], before the first event and after each
    reserved_bytes: npt.NDArray[np.int64] | None  # [N + 1]; None: it does not add up
    overfull: bool  # it does not: more is held than the segments have
    lost_bytes: int  # that the history holds at its end and no segment does
    unheld_bytes: int  # freed in the history, and in a segment as if it were not

    def held_at(self, event: int) -> npt.NDArray[np.int64]:
        """Rows that were held after an event; BEFORE: before the first."""
        return np.flatnonzero((self.begin <= event) & (self.end > event))

    @property
    def peak_event(self) -> int:
        """The first event after which most was held; BEFORE: never more than before."""
        return int(np.argmax(self.held_bytes)) - 1


class _Rows:
    """Rows of Allocations as they grow."""

    def __init__(self, events: int) -> None:
        self.columns: list[list[int]] = []
        self.events = events

    def add(self, begin: int, size: int, stream: int, stack: int, text: int) -> int:
        """A row that is held from an event on; its number."""
        never = self.events
        row = [begin, never, never, size, stream, stack, NOT_RECORDED, text]
        self.columns.append(row)
        return len(self.columns) - 1


_REQUESTED, _END, _FREE_STACK = 1, 2, 6


def allocations_of(history: History, segments: Sequence[Segment]) -> Allocations:
    """Replay one device's history, and hold its end against the device's segments."""
    rows = _Rows(len(history))
    lost, unheld = _against_segments(rows, _replay(history, rows), segments)
    table = np.array(rows.columns, np.int64).reshape(-1, 8).T
    held_bytes = _held(table, len(history))
    reserved = _reserved(history, segments)
    overfull = reserved is not None and bool((reserved < held_bytes).any())
    return Allocations(
        begin=table[0],
        requested_end=table[_REQUESTED],
        end=table[_END],
        size_bytes=table[3],
        stream=table[4],
        stack=table[5].astype(np.int32),
        free_stack=table[_FREE_STACK].astype(np.int32),
        metadata=table[7].astype(np.int32),
        held_bytes=held_bytes,
        reserved_bytes=None if overfull else reserved,
        overfull=overfull,
        lost_bytes=int(table[3][lost].sum()),
        unheld_bytes=unheld,
    )


class _Replayed(NamedTuple):
    """Where addresses stand as a history ends: rows by address, and what is free."""

    live: dict[int, int]
    awaiting: dict[int, int]  # another stream
    freed: set[int]


def _replay(history: History, rows: _Rows) -> _Replayed:
    """Fill in what the history says."""
    freed: set[int] = set()
    live: dict[int, int] = {}
    awaiting: dict[int, int] = {}
    events = zip(
        history.action.tolist(),
        history.address.tolist(),
        history.size_bytes.tolist(),
        history.stream.tolist(),
        history.stack.tolist(),
        history.metadata.tolist(),
        strict=True,
    )
    for event, (action, address, size, stream, stack, text) in enumerate(events):
        if action == Action.ALLOC:
            for gone in (live.pop(address, None), awaiting.pop(address, None)):
                if gone is not None:  # its end was not recorded (skip_actions)
                    rows.columns[gone][_END] = event
            live[address] = rows.add(event, size, stream, stack, text)
            freed.discard(address)
        elif action == Action.FREE_REQUESTED:
            row = live.pop(address, None)
            if row is None:
                row = rows.add(BEFORE, size, stream, NOT_RECORDED, text)
            rows.columns[row][_REQUESTED] = event
            rows.columns[row][_FREE_STACK] = stack
            awaiting[address] = row
            freed.discard(address)
        elif action == Action.FREE_COMPLETED:
            row = awaiting.pop(address, None)
            if row is None:  # a request that was not recorded
                row = live.pop(address, None)
                if row is None:
                    row = rows.add(BEFORE, size, stream, NOT_RECORDED, text)
                rows.columns[row][_REQUESTED] = event
                rows.columns[row][_FREE_STACK] = stack
            rows.columns[row][_END] = event
            freed.add(address)
    return _Replayed(live, awaiting, freed)


def _against_segments(
    rows: _Rows, replayed: _Replayed, segments: Sequence[Segment]
) -> tuple[list[int], int]:
    """Add what only the segments know of. The rows that no segment has, and the bytes
    that one has and the history has freed.
    """
    if not segments:
        return [], 0
    held = {**replayed.live, **replayed.awaiting}
    blocks = {
        block.address: block
        for segment in segments
        for block in segment.blocks
        if block.state is not BlockState.INACTIVE
    }
    unheld = 0
    for address, block in blocks.items():
        if address in replayed.freed:
            unheld += block.requested_bytes
        elif address not in held:
            _hold_before(rows, block)
    for address in replayed.awaiting.keys() - blocks.keys():
        row = rows.columns[held.pop(address)]  # its end was not recorded (skip_actions)
        row[_END] = row[_REQUESTED]
    return [row for address, row in held.items() if address not in blocks], unheld


def _hold_before(rows: _Rows, block: Block) -> None:
    """A block that is held and whose allocation the history does not have."""
    row = rows.add(
        BEFORE, block.requested_bytes, NOT_RECORDED, block.stack, block.metadata
    )
    if block.state is BlockState.AWAITING_FREE:
        rows.columns[row][_REQUESTED] = rows.events - 1


def _held(table: npt.NDArray[np.int64], events: int) -> npt.NDArray[np.int64]:
    change = np.zeros(events + 2, np.int64)
    np.add.at(change, table[0] + 1, table[3])
    np.subtract.at(change, table[_END] + 1, table[3])
    held: npt.NDArray[np.int64] = np.cumsum(change)[: events + 1]
    return held


def _reserved(
    history: History, segments: Sequence[Segment]
) -> npt.NDArray[np.int64] | None:
    """What the allocator had of the device, worked back from the segments."""
    taken = np.isin(history.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    given = np.isin(history.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    sign = taken.astype(np.int64) - given.astype(np.int64)
    changes = np.concatenate((np.zeros(1, np.int64), sign * history.size_bytes))
    total = np.cumsum(changes)
    at_end = sum(segment.total_bytes for segment in segments)
    reserved: npt.NDArray[np.int64] = total + (at_end - int(total[-1]))
    return None if not segments or (reserved < 0).any() else reserved
