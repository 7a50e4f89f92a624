"""When each operation of a program runs: streams, or a host that waits itself.

Both walks go once through the operations in host order. That is exact and needs
no queue of events: streams and communicators are first in, first out, so that
whatever an operation can wait for stands before it in the list.

[Note: Times of an operation]
Each operation gets a tuple, always starting with the host's time at its start and
end; then, by code:
COMPUTE start, end · GATHER copy-in start, end, collective start, end
USE stall start, end, copy-out start, end · RESHARD when the memory is free again
REDUCE copy-in start, end, scatter start, end, all-reduce start, end
WAIT_GATHER stall start, end
WAIT_SCATTER, WAIT_POST, FINALIZE stall start, end for the scatter, end for the
all-reduce
`gate` in `streams` is what copy-in and all-gather both wait for before their next
work. A collective starts when this rank has arrived at it, and ends once the bytes have
moved. A communicator runs one at a time, in the order of issue, and is `free` then.

Both walks are long, and inside their loops nothing is called for a collective or a
wait: a function apart for what runs collectives took a sixth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fsdpdoctor.simulate.engine.opcodes import (
    COMMS,
    COMPUTE,
    FINALIZE,
    FLUSH,
    GATHER,
    HOST,
    REDUCE,
    RESHARD,
    ROOT,
    SYNC,
    USE,
    WAIT_GATHER,
    WAIT_POST,
    WAIT_SCATTER,
    Op,
    Program,
)

Times = tuple[int, ...]


class Clock(NamedTuple):
    """Where the host and the compute lane stand."""

    host_ns: int
    compute_ns: int


class Exposed(NamedTuple):
    """How long the compute lane stood still, by what it waited for."""

    all_gather_ns: int
    reduce_scatter_ns: int
    all_reduce_ns: int

    @property
    def total_ns(self) -> int:
        return sum(self)


class Walk(NamedTuple):
    """The times of every operation, and what they add up to."""

    times: list[Times]
    end: Clock
    exposed: Exposed


def streams(program: Program, ns: Sequence[int], at: Clock) -> Walk:
    """A device with streams: the host enqueues, and runs ahead where it can."""
    host, compute = at
    copy_in = gather = scatter = gate = compute
    gathered = [0] * program.slots
    scattered, reduced = ([compute] * (program.reductions + 1) for _ in range(2))
    resharded: dict[int, int] = {}
    free = [0] * COMMS
    times: list[Times] = []
    deferred = for_gather = for_scatter = for_reduce = 0
    add = times.append
    for op in program.ops:
        code, h = op[0], host
        if code == COMPUTE:
            start = compute if compute > host else host
            host += ns[op[2]] if op[2] >= 0 else 0
            end = start + ns[op[1]]
            compute = end if end > host else host
            add((h, host, start, compute))
        elif code == HOST:
            host += ns[op[1]]
            add((h, host))
        elif code == USE:
            _, slot, call, copy, waits, defers = op
            host += ns[call]
            gate = deferred if waits and deferred > gate else gate
            w0 = compute if compute > h else h
            w1 = gathered[slot] if slot >= 0 and gathered[slot] > w0 else w0
            for_gather += w1 - w0
            c0 = w1 if w1 > host else host
            compute = c0 + ns[copy]
            deferred = compute if defers else deferred
            gate = gate if defers else compute  # no gate is ahead of the lane
            add((h, host, w0, w1, c0, compute))
        elif code == GATHER:
            _, slot, call, copy, length, comm, async_op, event = op
            host += ns[call]
            gate = resharded[event] if event >= 0 and resharded[event] > gate else gate
            if async_op:  # copy-in on the compute stream
                c0 = compute if compute > host else host
                ready = c1 = compute = c0 + ns[copy]
            else:
                c0 = copy_in if copy_in > gate else gate
                c0 = host if host > c0 else c0
                c1 = copy_in = c0 + ns[copy]
                ready = gather if gather > c1 else c1
            start = free[comm] if free[comm] > ready else ready
            end = start + ns[length]
            gathered[slot] = free[comm] = end
            gather = gather if async_op else end
            add((h, host, c0, c1, start, end))
        elif code == RESHARD:
            freed = compute if compute > host else host
            if op[2] >= 0:
                freed = compute = resharded[op[1]] = freed + ns[op[2]]
            add((h, host, freed))
        elif code == REDUCE:
            _, reduction, call, copy, length, comm, all_reduce = op
            host += ns[call]
            c0 = compute if compute > host else host
            compute = c0 + ns[copy]
            start = end = scatter if scatter > compute else compute
            if length >= 0:
                start = free[comm] if free[comm] > start else start
                free[comm] = end = start + ns[length]
            scatter = scattered[-1] = scattered[reduction] = a0 = a1 = end
            if all_reduce >= 0:
                a0 = reduced[-1] if reduced[-1] > end else end
                reduced[-1] = a1 = a0 + ns[all_reduce]
            reduced[reduction] = a1
            add((h, host, c0, compute, start, end, a0, a1))
        elif code in (ROOT, FLUSH, SYNC):
            host, gate = _meet(op, ns, host, compute, gate, deferred)
            add((h, host))
        else:
            w0 = compute if compute > host else host
            until = scattered[op[1]] if code != WAIT_GATHER else gathered[op[1]]
            also = reduced[op[1]] if code in (WAIT_POST, FINALIZE) else until
            w1 = until if until > w0 else w0
            w2 = also if also > w1 else w1
            for_gather += w1 - w0 if code == WAIT_GATHER else 0
            for_scatter += w1 - w0 if code != WAIT_GATHER else 0
            for_reduce += w2 - w1
            compute = w2 if w2 > w0 else compute  # no wait holds the lane up either
            add((h, host, w0, w1, w2))
    exposed = Exposed(for_gather, for_scatter, for_reduce)
    return Walk(times, Clock(host, compute), exposed)


def _meet(
    op: Op, ns: Sequence[int], host: int, compute: int, gate: int, deferred: int
) -> tuple[int, int]:
    """Host and gate, where one waits for the compute lane or for a copy-out on it."""
    if op[0] == SYNC:
        return max(host, compute), gate
    if op[0] == FLUSH:
        return host, max(gate, deferred)
    return host + ns[op[1]], max(gate, compute)


def blocking(program: Program, ns: Sequence[int], at: Clock) -> Walk:
    """A host without streams (CPU, gloo): it computes, copies and waits itself.

    It stands still inside every collective but an all-gather with `async_op`, which
    it waits for when the unit is used.
    """
    now = at.host_ns
    gathered = [0] * program.slots
    free = [0] * COMMS
    times: list[Times] = []
    for_gather = for_scatter = for_reduce = 0
    add = times.append
    for op in program.ops:
        code, h = op[0], now
        if code == COMPUTE:
            if op[2] >= 0:
                now += ns[op[2]]
            start, now = now, now + ns[op[1]]
            add((h, now, start, now))
        elif code in (HOST, ROOT):
            now += ns[op[1]]
            add((h, now))
        elif code == USE:
            w0 = now
            if op[1] >= 0 and gathered[op[1]] > now:
                for_gather += gathered[op[1]] - now
                now = gathered[op[1]]
            w1 = now
            c0 = now + ns[op[2]]
            now = c0 + ns[op[3]]
            add((h, now, w0, w1, c0, now))
        elif code == GATHER:
            c0 = now + ns[op[2]]
            c1 = now = c0 + ns[op[3]]
            start = free[op[5]] if free[op[5]] > now else now
            end = start + ns[op[4]]
            gathered[op[1]] = free[op[5]] = end
            if not op[6]:
                for_gather += end - now
                now = end
            add((h, now, c0, c1, start, end))
        elif code == RESHARD:
            if op[2] >= 0:
                now += ns[op[2]]
            add((h, now, now))
        elif code == REDUCE:
            c0 = now + ns[op[2]]
            c1 = start = end = c0 + ns[op[3]]
            if op[4] >= 0:
                start = free[op[5]] if free[op[5]] > c1 else c1
                free[op[5]] = end = start + ns[op[4]]
            now = end + ns[op[6]] if op[6] >= 0 else end
            for_scatter += end - c1
            for_reduce += now - end
            add((h, now, c0, c1, start, end, end, now))
        elif code == WAIT_GATHER:
            until = gathered[op[1]]
            w0, now = now, until if until > now else now
            for_gather += now - w0
            add((h, now, w0, now, now))
        elif code in (WAIT_SCATTER, WAIT_POST, FINALIZE):
            add((h, now, now, now, now))
        else:  # SYNC, FLUSH: nothing runs apart from the host
            add((h, now))
    exposed = Exposed(for_gather, for_scatter, for_reduce)
    return Walk(times, Clock(now, now), exposed)
