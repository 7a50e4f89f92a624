"""The operations of a simulated step, what they cost, and what a program of them is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from fsdpdoctor.network import bus_factor
from fsdpdoctor.schema import Flag, Kind, Phase
from fsdpdoctor.simulate.engine.step import CommCosts, Step, Unit

# Operations: a tuple each, its code first. `ns` operands are indices into the list
# that `durations` makes, -1 where there is nothing to do.
HOST = 0  # ns
COMPUTE = 1  # ns, host ns
GATHER = 2  # slot, host ns, copy-in ns, wire ns, communicator, async, event slot
USE = 3  # slot, host ns, copy-out ns, waits for the deferred one, defers itself
RESHARD = 4  # slot, ns of the copy that an integer reshard keeps
REDUCE = 5  # id, host ns, copy-in ns, wire ns, communicator, all-reduce ns
WAIT_SCATTER = 6  # id: a reduce-scatter's input buffer is to be used again
WAIT_POST = 7  # id: the unit's earlier reduction in this step
FINALIZE = 8  # the last reductions of each stream
WAIT_GATHER = 9  # slot: an unshard that nothing used
SYNC = 10  # the host waits for the device
ROOT = 11  # the all-gather streams wait for compute
FLUSH = 12  # the all-gather streams wait for the deferred copy-out

Op = tuple[int, ...]

# Communicators. One collective at a time on each.
SHARD_COMM = 0
REDUCE_COMM = 1  # SHARD_COMM unless set_separate_reduce_scatter_group
REPLICATE_COMM = 2
POST_FORWARD_COMM = 3
COMMS = 4

# Where the durations of a unit and of a segment stand in the list.
UNIT_NS = 8
COPY_IN, AG, AG_POST_FORWARD, COPY_OUT, REDUCE_COPY_IN, RS, AR, CLONE = range(UNIT_NS)
# REDUCE_COPY_IN, RS and AR are of one piece, where a unit is reduced in several.
SEGMENT_NS = 5
FWD, BWD, RECOMPUTE, HOST_FWD, HOST_BWD = range(SEGMENT_NS)
REST_NS = 15
(
    H_ROOT,
    H_PRE_FORWARD,
    H_UNSHARD,
    H_WAIT,
    H_POST_FORWARD,
    H_PRE_BACKWARD,
    H_POST_BACKWARD,
    H_REDUCE,
    H_FINAL,
    INPUT,
    LOSS,
    HOST_LOSS,
    BEFORE,
    AFTER,
    HOST_AFTER,
) = range(REST_NS)


# As plain numbers: the operators of enums are slow, and a search runs this often.
P_OTHER, P_FORWARD, P_BACKWARD, P_OPTIMIZER = (int(p) for p in Phase)
F_FORWARD_PREFETCH = int(Flag.FORWARD_PREFETCH)
F_BACKWARD_PREFETCH = int(Flag.BACKWARD_PREFETCH)
F_RECOMPUTE = int(Flag.RECOMPUTE)
F_ASYNC_OP = int(Flag.ASYNC_OP)


class Held(IntEnum):
    """What memory is held for."""

    GATHERED = 0  # unsharded parameters
    GATHER_OUTPUT = 1  # of an all-gather, until it is copied out
    POST_FORWARD = 2  # the shards that an integer reshard keeps
    GRADS = 3  # unsharded gradients
    REDUCE_INPUT = 4
    REDUCE_OUTPUT = 5  # in the reduce dtype
    SHARDED_GRADS = 6


# Plain tuples: a search makes millions of them, and a NamedTuple costs three times
# as much.
Move = tuple[int, int, int, int]
"""Memory taken or given back: before which operation, Held, unit, bytes."""
Meta = tuple[int, int, int, int, int, int]
"""What an operation is about: unit, Phase, micro-batch, by which unit, Flag bits,
segment."""


(
    GATHERED,
    GATHER_OUTPUT,
    POST_FORWARD,
    GRADS,
    REDUCE_INPUT,
    REDUCE_OUTPUT,
    SHARDED_GRADS,
) = (int(held) for held in Held)


class Pass(NamedTuple):
    """One forward or backward of a unit: the operations inside it."""

    unit: int
    phase: int
    micro_batch: int
    first: int
    last: int
    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A step's operations in host order, what they are about, and their memory."""

    ops: tuple[Op, ...]
    meta: tuple[Meta, ...]
    moves: tuple[Move, ...]
    passes: tuple[Pass, ...]
    micro_batches: tuple[tuple[int, int], ...]  # first and last operation
    rest: int  # where the durations of hooks begin
    slots: int  # all-gathers, each one's place in the lists of `timing`
    reductions: int
    peak_bytes: int  # with what is resident and what segments allocate
    gathered_peak_bytes: int  # of unsharded parameters alone


def _post_forward_ns(wires: CommCosts, unit: Unit, gathered: int) -> int:
    """A gather over as many ranks as a unit reshards to, at the group's bandwidth."""
    wire, size = wires.post_forward, unit.reshard_after_forward
    if wire is None or isinstance(size, bool):
        return 0
    if wires.post_forward_ranks not in (None, size):
        moved = bus_factor(Kind.ALL_GATHER, size)
        share = moved / bus_factor(Kind.ALL_GATHER, wires.post_forward_ranks)
        return wire.ns(round(gathered * share))
    return wire.ns(gathered)


def durations(step: Step) -> list[int]:
    """The ns of everything that a program of this step's shape can ask for."""
    shard, wires = step.mesh.shard, step.wires
    ns: list[int] = []
    for unit in step.units:
        gathered, reduced = unit.gathered_bytes(shard), unit.reduced_bytes(shard)
        reduced //= unit.pieces
        gather = wires.all_gather.ns(gathered) + unit.gather_extra_ns
        reduce = wires.reduce_scatter.ns(reduced) + (
            unit.reduce_extra_ns // unit.pieces
        )
        small = _post_forward_ns(wires, unit, gathered)
        all_reduce = wires.all_reduce.ns(reduced // shard) if wires.all_reduce else 0
        ns += (
            unit.copy_in_ns,
            max(gather, 0),
            small,
            unit.copy_out_ns,
            unit.reduce_copy_in_ns // unit.pieces,
            max(reduce, 0),
            all_reduce,
            unit.copy_in_ns,  # an integer reshard clones about what a copy-in copies
        )
    for s in step.segments:
        again = s.forward_ns if s.recompute_ns is None else s.recompute_ns
        ns += (
            s.forward_ns,
            s.backward_ns,
            again,
            s.host_forward_ns,
            s.host_backward_ns,
        )
    h = step.host
    ns += (
        h.root_pre_forward_ns,
        h.pre_forward_ns,
        h.unshard_ns,
        h.wait_ns,
        h.post_forward_ns,
        h.pre_backward_ns,
        h.post_backward_ns,
        h.reduce_ns,
        h.final_callback_ns,
        step.input_ns,
        step.loss_ns,
        step.host_loss_ns,
        step.before_ns,
        step.after_ns,
        step.host_after_ns,
    )
    return ns
