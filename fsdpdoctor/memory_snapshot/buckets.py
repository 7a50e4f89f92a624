"""What each allocation was for: its stack's purpose, and what more than a stack tells.

- FSDP2 allocates a reduce-scatter's input on the stream that computes, and its output,
  the sharded gradients, on another.
- Of the optimizer's allocations its states are held when its step has ended.
- A gradient that FSDP2 reduces is freed by `foreach_reduce`.
- `Module._apply` treats a module's buffers on a later line than its parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fsdpdoctor.memory_snapshot.allocations import BEFORE, Allocations
from fsdpdoctor.memory_snapshot.purpose import (
    IN_OR_OUT,
    LAST_STEP,
    NO_LIFE,
    NO_STACK,
    Purpose,
    Rest,
    purpose_of,
)
from fsdpdoctor.memory_snapshot.snapshot import Stack
from fsdpdoctor.schema.memory import Bucket

BEFORE_HISTORY = "allocated before the history began, and freed in it"

_UNTOLD = Purpose(why=NO_STACK)
_GONE = Purpose(why=BEFORE_HISTORY)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Purposes:
    """What allocations were for, A rows."""

    kinds: tuple[Purpose, ...]  # each that occurs
    kind: npt.NDArray[np.int32]  # [A], among them

    def of(self, row: int) -> Purpose:
        """What one allocation was for."""
        return self.kinds[int(self.kind[row])]


def purposes_of(held: Allocations, stacks: Sequence[Stack]) -> Purposes:
    """The purpose of every allocation of a device."""
    of_stack = [purpose_of(stack) for stack in stacks]
    first = [
        of_stack[stack] if stack >= 0 else _GONE if begin == BEFORE and end else _UNTOLD
        for stack, begin, end in zip(
            held.stack.tolist(), held.begin.tolist(), _ended(held), strict=True
        )
    ]
    numbers: dict[Purpose, int] = {}
    closed = _Closer(held, stacks, first)
    kind = [
        numbers.setdefault(closed.purpose(row), len(numbers))
        for row in range(len(first))
    ]
    return Purposes(kinds=tuple(numbers), kind=np.array(kind, np.int32))


def _ended(held: Allocations) -> list[bool]:
    ended: list[bool] = (held.requested_end < len(held.held_bytes) - 1).tolist()
    return ended


class _Closer:
    """Closes what stacks leave open, by all of a device's allocations together."""

    def __init__(
        self, held: Allocations, stacks: Sequence[Stack], first: Sequence[Purpose]
    ) -> None:
        self._held = held
        self._first = first
        self._reduces_grads = frozenset(
            number for number, stack in enumerate(stacks) if _in_reduce(stack)
        )
        self._compute_stream = self._stream_of(Bucket.GATHERED_PARAMETERS)
        reduces = [r for r, one in enumerate(first) if one.rest is Rest.REDUCE]
        streams = {int(held.stream[row]) for row in reduces}
        self._streams_tell = bool(streams - {self._compute_stream})
        lines = {first[row].line for row in reduces}
        self._output_line = max(lines) if len(lines) > 1 else None
        self._parameter_line = max(
            (one.line for one in first if one.rest is Rest.APPLY and one.bucket),
            default=None,
        )
        self._step_ends = self._ends_of_steps()

    def purpose(self, row: int) -> Purpose:
        """The purpose of one allocation."""
        first = self._first[row]
        match first.rest:
            case Rest.REDUCE:
                return self._of_reduce(first, row)
            case Rest.OPTIMIZER:
                return self._of_optimizer(row)
            case Rest.BACKWARD:
                reduced = int(self._held.free_stack[row]) in self._reduces_grads
                bucket = Bucket.UNSHARDED_GRADIENTS if reduced else Bucket.BACKWARD
                return Purpose(bucket=bucket)
            case Rest.APPLY if first.bucket is None:
                least = self._parameter_line
                if least is not None and first.line > least:
                    return Purpose(bucket=Bucket.BUFFERS)
        return replace(first, rest=Rest.NOTHING, line=0)

    def _stream_of(self, bucket: Bucket) -> int:
        """The stream that most allocations of a bucket are made on; 0 without any."""
        rows = [row for row, one in enumerate(self._first) if one.bucket is bucket]
        if not rows:
            return 0
        streams, counts = np.unique(self._held.stream[rows], return_counts=True)
        return int(streams[np.argmax(counts)])

    def _of_reduce(self, first: Purpose, row: int) -> Purpose:
        if self._streams_tell and self._held.begin[row] != BEFORE:
            is_output = int(self._held.stream[row]) != self._compute_stream
        elif self._output_line is not None:
            is_output = first.line == self._output_line
        else:
            return Purpose(why=IN_OR_OUT)
        return Purpose(bucket=Bucket.GRADIENTS if is_output else Bucket.REDUCE_INPUTS)

    def _ends_of_steps(self) -> npt.NDArray[np.int64]:
        """Events of allocations under a stack outside the optimizer."""
        outside = [
            row
            for row, one in enumerate(self._first)
            if one.rest is not Rest.OPTIMIZER
            and one.bucket not in (Bucket.OPTIMIZER_STATES, None)
        ]
        return np.unique(self._held.begin[outside])

    def _of_optimizer(self, row: int) -> Purpose:
        begin, end = int(self._held.begin[row]), int(self._held.requested_end[row])
        if len(self._held.held_bytes) == 1:
            return Purpose(why=NO_LIFE)
        if begin == BEFORE:
            return Purpose(
                bucket=Bucket.OPTIMIZER_STATES
            )  # and held all the time since
        at = int(np.searchsorted(self._step_ends, begin, side="right"))
        if at < len(self._step_ends):
            outlives = end > int(self._step_ends[at])
        elif end < len(self._held.held_bytes) - 1:
            outlives = False
        else:
            return Purpose(why=LAST_STEP)
        return Purpose(bucket=Bucket.OPTIMIZER_STATES if outlives else Bucket.OPTIMIZER)


def _in_reduce(stack: Stack) -> bool:
    return any(frame.function == "foreach_reduce" for frame in stack)
