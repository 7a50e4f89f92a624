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
A collective starts when this rank has arrived at it, and ends once the last rank
has arrived and the bytes have moved.
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
    REPLICATE_COMM,
    RESHARD,
    ROOT,
    SYNC,
    USE,
    WAIT_GATHER,
    WAIT_POST,
    WAIT_SCATTER,
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
    arrivals: list[int]  # when this rank was ready for each collective
    exposed: Exposed


def streams(
    program: Program, ns: Sequence[int], at: Clock, others: Sequence[int] = ()
) -> Walk:
    """A device with streams: the host enqueues, and runs ahead where it can.

    `others`: for each collective, when the last of the other ranks is ready for it.
    """
    host, compute = at
    copy_in = gather = scatter = reduce = compute
    comm = [0] * COMMS
    gathered = [0] * program.slots
    scattered = [0] * program.reductions
    reduced = [0] * program.reductions
    resharded: dict[int, int] = {}
    deferred = 0
    times: list[Times] = []
    arrivals: list[int] = []
    for_gather = for_scatter = for_reduce = 0
    add, arrive = times.append, arrivals.append
    for op in program.ops:
        code, h = op[0], host
        if code == COMPUTE:
            start = compute if compute > host else host
            if op[2] >= 0:
                host += ns[op[2]]
            compute = start + ns[op[1]]
            if host > compute:
                compute = host
            add((h, host, start, compute))
        elif code == HOST:
            host += ns[op[1]]
            add((h, host))
        elif code == USE:
            host += ns[op[2]]
            if op[4]:
                copy_in = deferred if deferred > copy_in else copy_in
                gather = deferred if deferred > gather else gather
            w0 = w1 = compute if compute > h else h
            if op[1] >= 0 and gathered[op[1]] > w1:
                w1 = gathered[op[1]]
                for_gather += w1 - w0
            c0 = w1 if w1 > host else host
            compute = c0 + ns[op[3]]
            if op[5]:
                deferred = compute
            else:
                copy_in = compute if compute > copy_in else copy_in
                gather = compute if compute > gather else gather
            add((h, host, w0, w1, c0, compute))
        elif code == GATHER:
            host += ns[op[2]]
            if op[7] >= 0:
                event = resharded[op[7]]
                copy_in = event if event > copy_in else copy_in
                gather = event if event > gather else gather
            if op[6]:  # async_op: copy-in on the compute stream
                c0 = compute if compute > host else host
                c1 = compute = c0 + ns[op[3]]
                start = c1
            else:
                c0 = copy_in if copy_in > host else host
                c1 = copy_in = c0 + ns[op[3]]
                start = gather if gather > c1 else c1
            start = comm[op[5]] if comm[op[5]] > start else start
            k = len(arrivals)
            arrive(start)
            ready = others[k] if others and others[k] > start else start
            end = comm[op[5]] = gathered[op[1]] = ready + ns[op[4]]
            if not op[6]:
                gather = end
            add((h, host, c0, c1, start, end))
        elif code == RESHARD:
            free = compute if compute > host else host
            if op[2] >= 0:
                free = compute = free + ns[op[2]]
                resharded[op[1]] = free
            add((h, host, free))
        elif code == REDUCE:
            host += ns[op[2]]
            c0 = compute if compute > host else host
            compute = c0 + ns[op[3]]
            start = end = scatter if scatter > compute else compute
            if op[4] >= 0:
                start = comm[op[5]] if comm[op[5]] > start else start
                k = len(arrivals)
                arrive(start)
                ready = others[k] if others and others[k] > start else start
                end = comm[op[5]] = ready + ns[op[4]]
            scatter = scattered[op[1]] = end
            a0 = a1 = end
            if op[6] >= 0:
                a0 = reduce if reduce > end else end
                k = len(arrivals)
                arrive(a0)
                ready = others[k] if others and others[k] > a0 else a0
                a1 = reduce = ready + ns[op[6]]
            reduced[op[1]] = a1
            add((h, host, c0, compute, start, end, a0, a1))
        elif code == ROOT:
            host += ns[op[1]]
            copy_in = compute if compute > copy_in else copy_in
            gather = compute if compute > gather else gather
            add((h, host))
        elif code == FLUSH:
            copy_in = deferred if deferred > copy_in else copy_in
            gather = deferred if deferred > gather else gather
            add((h, host))
        elif code == SYNC:
            host = compute if compute > host else host
            add((h, host))
        else:
            w0 = w1 = compute if compute > host else host
            if code == WAIT_GATHER:
                w1 = gathered[op[1]] if gathered[op[1]] > w0 else w0
                for_gather += w1 - w0
                w2 = w1
            else:
                if code == WAIT_SCATTER:
                    until = also = scattered[op[1]]
                elif code == WAIT_POST:
                    until, also = scattered[op[1]], reduced[op[1]]
                else:
                    until, also = scatter, reduce
                w1 = until if until > w0 else w0
                w2 = also if also > w1 else w1
                for_scatter += w1 - w0
                for_reduce += w2 - w1
            # What has nothing to wait for does not hold the lane up either.
            compute = w2 if w2 > w0 else compute
            add((h, host, w0, w1, w2))
    exposed = Exposed(for_gather, for_scatter, for_reduce)
    return Walk(times, Clock(host, compute), arrivals, exposed)


def blocking(
    program: Program, ns: Sequence[int], at: Clock, others: Sequence[int] = ()
) -> Walk:
    """A host without streams (CPU, gloo): it computes, copies and waits itself.

    It stands still inside every collective but an all-gather with `async_op`, which
    it waits for when the unit is used.
    """
    now = at.host_ns
    comm = [0] * COMMS
    gathered = [0] * program.slots
    times: list[Times] = []
    arrivals: list[int] = []
    for_gather = for_scatter = for_reduce = 0
    add, arrive = times.append, arrivals.append
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
            start = comm[op[5]] if comm[op[5]] > now else now
            k = len(arrivals)
            arrive(start)
            ready = others[k] if others and others[k] > start else start
            end = comm[op[5]] = gathered[op[1]] = ready + ns[op[4]]
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
            c1 = start = end = now = c0 + ns[op[3]]
            if op[4] >= 0:
                start = comm[op[5]] if comm[op[5]] > now else now
                k = len(arrivals)
                arrive(start)
                ready = others[k] if others and others[k] > start else start
                end = comm[op[5]] = ready + ns[op[4]]
            a0 = a1 = end
            if op[6] >= 0:
                a0 = comm[REPLICATE_COMM] if comm[REPLICATE_COMM] > end else end
                k = len(arrivals)
                arrive(a0)
                ready = others[k] if others and others[k] > a0 else a0
                a1 = comm[REPLICATE_COMM] = ready + ns[op[6]]
            for_scatter += end - now
            for_reduce += a1 - end
            now = a1
            add((h, now, c0, c1, start, end, a0, a1))
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
    return Walk(times, Clock(now, now), arrivals, exposed)
