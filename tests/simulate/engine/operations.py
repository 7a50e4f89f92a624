"""Operations of the simulator, and what becomes of a few of them.

An operand is how long it takes: `5` is 5 ns, but 0, the first of the list, takes 50.
"""

from __future__ import annotations

from collections.abc import Callable

from fsdpdoctor.simulate.engine.opcodes import (
    GATHER,
    REDUCE,
    REDUCE_COMM,
    SHARD_COMM,
    USE,
    Op,
    Program,
)
from fsdpdoctor.simulate.engine.timing import (
    Clock,
    Walk,
    blocking,
    streams,
)

NS = (50, *range(1, 60), 0, 7)
NOTHING = 60  # takes 0
NONE = LAST = -1
WORLD_1 = -2
SLOTS = 2

Device = Callable[[Program, tuple[int, ...], Clock], Walk]


def gather(
    slot: int,
    call: int,
    copy: int,
    wire: int,
    comm: int = SHARD_COMM,
    *,
    async_op: bool = False,
    event: int = NONE,
) -> Op:
    """An all-gather: its host call, its copy-in, its wire."""
    return (GATHER, slot, call, copy, wire, comm, int(async_op), event)


def use(
    slot: int, call: int, copy: int, *, waits: bool = False, defers: bool = False
) -> Op:
    """The wait for an all-gather, and its copy-out."""
    return (USE, slot, call, copy, int(waits), int(defers))


def reduce(
    id_: int, call: int, copy: int, wire: int, comm: int = REDUCE_COMM, more: int = NONE
) -> Op:
    """A reduce-scatter, with an all-reduce of `more`."""
    return (REDUCE, id_, call, copy, wire, comm, more)


def run(device: Device, ops: tuple[Op, ...], at: Clock) -> Walk:
    """What becomes of some operations."""
    plan = Program(
        ops=ops,
        meta=(),
        moves=(),
        passes=(),
        micro_batches=(),
        rest=0,
        slots=SLOTS,
        reductions=sum(op[0] == REDUCE for op in ops),
        peak_bytes=0,
        gathered_peak_bytes=0,
    )
    return device(plan, NS, at)


def on_streams(*ops: Op, host: int = 0, compute: int = 0) -> Walk:
    """On a device, from where these stand."""
    return run(streams, ops, Clock(host, compute))


def on_host(*ops: Op, host: int = 0) -> Walk:
    """On a host that waits itself."""
    return run(blocking, ops, Clock(host, host))


FIRST = gather(0, 2, 3, 10)
"""Copied in from 2, on the wire from 5 to 15."""
SECOND = gather(1, 1, 1, 4)
