"""What every part of the recorder writes to: one step's rows, and the counts
that go on over the whole run.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple

from fsdpdoctor.recorder import lanes, phases
from fsdpdoctor.recorder.patching import ErrorBorder
from fsdpdoctor.recorder.storage.clocks import Clock
from fsdpdoctor.recorder.storage.gathered_tensors import GatheredTensors
from fsdpdoctor.recorder.storage.step_buffer import (
    CallSiteBuffer,
    CounterBuffer,
    MemoryBuffer,
    SpanBuffer,
    StackBuffer,
)
from fsdpdoctor.run_writer import Heartbeat
from fsdpdoctor.schema import UNKNOWN, Kind, Phase
from fsdpdoctor.schema.string_table import StringTable


class BufferPosition(NamedTuple):
    """How far the buffers were filled at some moment."""

    spans: int
    memory: int
    counters: int
    call_sites: int = 0
    stacks: int = 0

    def after(self, dropped: BufferPosition) -> BufferPosition:
        """The same row, when those up to an earlier one are gone."""
        return BufferPosition(*(a - b for a, b in zip(self, dropped, strict=True)))


def nothing_to_read() -> None:
    """Every hook is live."""


class Recording:
    """The state that hooks share. One per session, written by one thread at a
    time: the training thread, or autograd's while that one waits for it.
    """

    def __init__(self, clock: Clock, guard: ErrorBorder, heartbeat: Heartbeat) -> None:
        self.use(clock)
        self.unix_minus_clock_ns = time.time_ns() - perf_counter_ns()
        self.guard = guard
        self.heartbeat = heartbeat
        # Leaves a trace of what this rank does now, even if it is killed.
        self.beat = heartbeat.beat
        self.spans = SpanBuffer()
        self.memory = MemoryBuffer()
        self.counters = CounterBuffer()
        self.call_sites = CallSiteBuffer()
        self.stacks = StackBuffer()
        self.names = StringTable()
        self.on = False  # whether rows are kept
        self.step = 0
        self.micro_batch = UNKNOWN  # the pass, until the step is over: `micro_batches`
        self.in_forward = False  # a root's forward is running
        self.own_collective = False  # FSDP2 is issuing one, whose hooks record it
        self.live_bytes = 0  # of unsharded parameters
        self.gathered = GatheredTensors()  # outside FSDP2
        self._ops = itertools.count()
        self.next_op = 0
        self.seqs: list[int] = []  # by group
        # Reads what hooks in C have written down: before anything that this changes
        # is looked at, or changed by somebody else.
        self.catch_up: Callable[[], None] = nothing_to_read

    def use(self, clock: Clock) -> None:
        """Take ticks of this clock from here on; earlier ones must be times."""
        self.clock = clock
        self.tick: Callable[..., int] = clock.tick

    def unix_ns(self) -> int:
        """Now, on one axis with all that is recorded: the system's clock may be set."""
        return perf_counter_ns() + self.unix_minus_clock_ns

    def alive_bytes(self) -> int:
        """Of unsharded parameters, in units and gathered beside them."""
        return self.live_bytes + self.gathered.size()

    def new_op(self) -> int:
        """The number that joins the spans of one unshard or one reduction."""
        op = next(self._ops)  # in one go: threads of the script's issue some, too
        self.next_op = op + 1
        return op

    def new_seq(self, group: int) -> int:
        """A collective's number within its group, the same on every rank."""
        seqs = self.seqs
        while len(seqs) <= group:
            seqs.append(0)
        seqs[group] += 1
        return seqs[group] - 1

    def rows(self) -> BufferPosition:
        """How far the buffers are filled."""
        return BufferPosition(
            len(self.spans),
            len(self.memory),
            len(self.counters),
            len(self.call_sites),
            len(self.stacks),
        )

    def drop(self, rows: BufferPosition) -> None:
        """Forget the first rows."""
        self.spans.drop(rows.spans)
        self.memory.detach(rows.memory)
        self.counters.take(rows.counters)
        self.call_sites.drop(rows.call_sites)
        self.stacks.drop(rows.stacks)

    def next_step(self) -> None:
        """What follows is of the next step."""
        self.step += 1
        self.heartbeat.step = self.step

    def enter_pass(self, number: int, nth: int) -> None:
        """What follows is of this pass, which is the nth of its model in the step."""
        self.micro_batch, self.heartbeat.micro_batch = number, nth

    def leave_pass(self) -> None:
        """What follows is of none."""
        self.micro_batch = self.heartbeat.micro_batch = UNKNOWN

    def host_span(
        self,
        kind: Kind,
        start_ns: int,
        phase: Phase = phases.OTHER,
        unit: int = UNKNOWN,
        flags: int = 0,
        op: int = UNKNOWN,
        name: str | None = None,
        value: int = UNKNOWN,
        end_ns: int | None = None,
    ) -> None:
        """Append a span of the host that ends now, or ended then."""
        self.spans.add(
            kind,
            lanes.HOST,
            phase,
            flags,
            self.micro_batch,
            unit,
            start_ns,
            perf_counter_ns() if end_ns is None else end_ns,
            op=op,
            name=UNKNOWN if name is None else self.names.id(name),
            value=value,
        )
