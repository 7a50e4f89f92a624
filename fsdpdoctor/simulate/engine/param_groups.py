"""What FSDP2 does with the units: `_fsdp_param_group.py`, state and hooks.

Part of [Note: Program and times]; what a module's hooks make of it is in `schedule`.
"""

from __future__ import annotations

from collections import deque

from fsdpdoctor.schema import UNKNOWN
from fsdpdoctor.simulate.engine.opcodes import (
    AG,
    AG_POST_FORWARD,
    AR,
    CLONE,
    COPY_IN,
    COPY_OUT,
    F_ASYNC_OP,
    F_BACKWARD_PREFETCH,
    FINALIZE,
    GATHER,
    GATHER_OUTPUT,
    GATHERED,
    GRADS,
    H_POST_BACKWARD,
    H_POST_FORWARD,
    H_PRE_BACKWARD,
    H_PRE_FORWARD,
    H_REDUCE,
    H_UNSHARD,
    H_WAIT,
    HOST,
    P_BACKWARD,
    P_FORWARD,
    POST_FORWARD,
    POST_FORWARD_COMM,
    REDUCE,
    REDUCE_COMM,
    REDUCE_COPY_IN,
    REDUCE_INPUT,
    REDUCE_OUTPUT,
    RESHARD,
    RS,
    SEGMENT_NS,
    SHARD_COMM,
    SHARDED_GRADS,
    UNIT_NS,
    USE,
    WAIT_GATHER,
    WAIT_POST,
    WAIT_SCATTER,
    Meta,
    Move,
    Op,
    Pass,
)
from fsdpdoctor.simulate.engine.step import MicroBatch, Node, Step

IDLE, FORWARD, PRE_BACKWARD, POST_BACKWARD = range(4)
"""FSDP2's TrainingState of a unit."""

NO_SLOT = LAST = -1
"""No all-gather is pending."""
WORLD_1 = -2
"""One is pending on a group of one rank, where no collective is issued."""


class ParamGroups:
    """The state that FSDP2 keeps between its hooks, and what it does with a unit."""

    def __init__(self, step: Step) -> None:
        self.step = step
        units, shard = step.units, step.mesh.shard
        n = len(units)
        self.ops: list[Op] = []
        self.meta: list[Meta] | deque[Meta] = []
        self.moves: list[Move] = []
        self.passes: list[Pass] = []
        self.rest = n * UNIT_NS + len(step.segments) * SEGMENT_NS
        self.segments_at = n * UNIT_NS
        # of each unit
        self.gathered = [u.gathered_bytes(shard) for u in units]
        # of one reduction: a unit may be reduced in pieces
        self.reduced = [u.reduced_bytes(shard) // u.pieces for u in units]
        self.grad_bytes = [u.grad_bytes for u in units]
        self.sharded_grad_bytes = [u.sharded_grad_bytes(shard) for u in units]
        self.state = [IDLE] * n
        self.unsharded = [False] * n
        self.post_forward_sharded = [False] * n
        self.kept = [0] * n  # bytes of _sharded_post_forward_param_data
        self.pending = [NO_SLOT] * n  # _all_gather_result
        self.event = [NO_SLOT] * n  # _reshard_after_forward_event
        self.indices: list[list[int]] = [[] for _ in units]  # _post_forward_indices
        self.grads = [0] * n  # bytes of the unsharded parameters' .grad
        self.accumulated = [0] * n  # unsharded_accumulated_grad, in the reduce dtype
        self.sharded_grads = [0] * n
        self.post_reduce = [NO_SLOT] * n  # _post_reduce_event of each
        self.all_reduced = [0] * n  # _all_reduce_state, where it is not the gradient
        self.partial = [0] * n  # _partial_reduce_output
        self.nodes, self.node_of, self.owners, self.share = step.root.layout
        # what FSDPCommContext shares among the units
        self.order: list[int] = []  # post_forward_order
        self.scatters: list[tuple[int, int]] = []  # reduce_scatter_states: id, unit
        self.deferred = NO_SLOT  # all_gather_state: the unit whose output it keeps
        self.reduced_since = False  # _last_post_reduce_events holds any
        self.cap = step.max_input_buffers
        self.in_backward = False
        self.iter_root = False  # iter_forward_root is set
        self.flags = MicroBatch()
        self.micro_batch = 0
        self.slots = self.reductions = 0
        self.live = step.resident_bytes
        self.peak = self.live
        self.live_gathered = self.peak_gathered = 0

    def emit(
        self, op: Op, unit: int, phase: int, by_unit: int = UNKNOWN, flags: int = 0
    ) -> None:
        self.ops.append(op)
        self.meta.append((unit, phase, self.micro_batch, by_unit, flags, UNKNOWN))

    def hold(self, held: int, unit: int, delta: int) -> None:
        if not delta:
            return
        # By the operation that comes next: what follows it sees the new amount.
        self.moves.append((len(self.ops), held, unit, delta))
        self.live += delta
        if self.live > self.peak:
            self.peak = self.live
        if held == GATHERED:
            self.live_gathered += delta
            if self.live_gathered > self.peak_gathered:
                self.peak_gathered = self.live_gathered

    def grow_grads(self, u: int, more: int) -> None:
        """Autograd makes some of a unit's gradients; they stay until reduced."""
        made = min(more, self.grad_bytes[u] - self.grads[u])
        self.grads[u] += made
        self.hold(GRADS, u, made)

    def unshard(self, u: int, state: int, by: int, flags: int) -> None:
        if self.pending[u] != NO_SLOT or self.unsharded[u]:
            return
        unit = self.step.units[u]
        if state == PRE_BACKWARD and not unit.unshard_in_backward:
            return
        small = self.post_forward_sharded[u]
        size = unit.reshard_after_forward if small else self.step.mesh.shard
        event, self.event[u] = self.event[u], NO_SLOT
        if size == 1:
            self.pending[u] = WORLD_1
            return
        slot = self.pending[u] = self.slots
        self.slots += 1
        self.hold(GATHER_OUTPUT, u, self.gathered[u])
        at = u * UNIT_NS
        phase = P_BACKWARD if self.in_backward else P_FORWARD
        op = (
            GATHER,
            slot,
            self.rest + H_UNSHARD,
            at + COPY_IN,
            at + (AG_POST_FORWARD if small else AG),
            POST_FORWARD_COMM if small else SHARD_COMM,
            int(unit.unshard_async_op),
            event,
        )
        if unit.unshard_async_op:
            flags |= F_ASYNC_OP
        self.emit(op, u, phase, by, flags)

    def wait_for_unshard(self, u: int, state: int, flags: int) -> None:
        slot, unit = self.pending[u], self.step.units[u]
        if slot == NO_SLOT:
            return
        waits = state == FORWARD and self.deferred != NO_SLOT
        if waits:
            self.free_deferred()
        self.hold(GATHERED, u, self.gathered[u])
        self.unsharded[u] = True
        defers = state == FORWARD and slot >= 0 and not unit.unshard_async_op
        phase = P_BACKWARD if self.in_backward else P_FORWARD
        op = (
            USE,
            slot,
            self.rest + H_WAIT,
            u * UNIT_NS + COPY_OUT,
            int(waits),
            int(defers),
        )
        self.emit(op, u, phase, u, flags)
        if self.post_forward_sharded[u]:
            self.post_forward_sharded[u] = False
            self.free_kept(u)
        self.pending[u] = NO_SLOT
        if defers:
            self.deferred = u
        elif slot >= 0:
            self.hold(GATHER_OUTPUT, u, -self.gathered[u])

    def free_deferred(self) -> None:
        u, self.deferred = self.deferred, NO_SLOT
        self.hold(GATHER_OUTPUT, u, -self.gathered[u])

    def free_kept(self, u: int) -> None:
        self.hold(POST_FORWARD, u, -self.kept[u])
        self.kept[u] = 0

    def reshard(self, u: int) -> None:
        if not self.unsharded[u]:
            # to_sharded: what was kept and not gathered stays until the next is kept.
            self.post_forward_sharded[u] = False
            return
        phase = P_BACKWARD if self.in_backward else P_FORWARD
        size = self.step.units[u].reshard_after_forward
        clone = NO_SLOT
        if self.state[u] == FORWARD:
            if size is False:
                return
            if size is not True:
                clone = u * UNIT_NS + CLONE
                self.event[u] = u
                self.post_forward_sharded[u] = True
                kept = self.gathered[u] // size
                self.hold(POST_FORWARD, u, kept)
                self.free_kept(u)
                self.kept[u] = kept
        self.emit((RESHARD, u, clone), u, phase, u)
        self.unsharded[u] = False
        self.hold(GATHERED, u, -self.gathered[u])

    def pre_forward(self, u: int, flags: int) -> None:
        self.state[u] = FORWARD
        phase = P_BACKWARD if self.in_backward else P_FORWARD
        self.emit((HOST, self.rest + H_PRE_FORWARD), u, phase, u, flags)
        self.unshard(u, FORWARD, u, flags)
        self.wait_for_unshard(u, FORWARD, flags)

    def post_forward(self, u: int) -> None:
        phase = P_BACKWARD if self.in_backward else P_FORWARD
        self.emit((HOST, self.rest + H_POST_FORWARD), u, phase, u)
        if not self.in_backward:
            self.reshard(u)
            self.indices[u].append(len(self.order))
            self.order.append(u)
        self.state[u] = IDLE

    def pre_backward(self, u: int) -> None:
        if self.state[u] == PRE_BACKWARD:
            return
        self.state[u] = PRE_BACKWARD
        self.emit((HOST, self.rest + H_PRE_BACKWARD), u, P_BACKWARD, u)
        self.unshard(u, PRE_BACKWARD, u, 0)
        self.wait_for_unshard(u, PRE_BACKWARD, 0)
        if not self.step.units[u].backward_prefetch:
            self.backward_prefetch(u)

    def backward_prefetch(self, u: int) -> None:
        if not self.indices[u]:
            return
        at = self.indices[u].pop()
        node = self.node_of[u]
        if len(node.units) == 1:
            if at > 0:
                target = self.order[at - 1]
                self.unshard(target, PRE_BACKWARD, u, F_BACKWARD_PREFETCH)
            return
        if node.units.index(u) != 1:
            return
        wanted: Node | None = None
        for target in reversed(self.order[:at]):
            of_target = self.node_of[target]
            if of_target is node:
                continue
            if wanted is not None and of_target is not wanted:
                break
            wanted = of_target
            self.unshard(target, PRE_BACKWARD, u, F_BACKWARD_PREFETCH)

    def post_backward(self, u: int) -> None:
        of_a_part = self.state[u] == FORWARD  # other modules of it have not run again
        self.state[u] = POST_BACKWARD
        self.emit((HOST, self.rest + H_POST_BACKWARD), u, P_BACKWARD, u)
        if self.accumulated[u]:
            # accumulate_unsharded_grad_if_needed
            self.hold(GRADS, u, -self.grads[u])
            self.grads[u] = 0
        if self.flags.reshard_after_backward:
            self.reshard(u)
        if not self.flags.sync:
            self.keep_grads(u)
            return
        units = self.node_of[u].units
        if u == units[-1]:
            while len(self.scatters) >= self.cap:
                self.wait_for_oldest_scatter()
        if self.grads[u] or self.accumulated[u]:
            self.reduce(u)
            if of_a_part:  # is_partial_group_backward: at once, and not in the next one
                self.emit((WAIT_POST, self.post_reduce[u]), u, P_BACKWARD)

    def keep_grads(self, u: int) -> None:
        """to_accumulated_grad_if_needed: they stay unsharded, in the reduce dtype."""
        unit = self.step.units[u]
        if unit.reduce_itemsize == unit.gather_itemsize or not self.grads[u]:
            return
        kept = unit.grad_bytes // unit.gather_itemsize * unit.reduce_itemsize
        self.hold(GRADS, u, kept)
        self.hold(GRADS, u, -self.grads[u])
        self.grads[u], self.accumulated[u] = 0, kept

    def wait_for_oldest_scatter(self) -> None:
        reduction, of_unit = self.scatters.pop(0)
        self.emit((WAIT_SCATTER, reduction), of_unit, P_BACKWARD)
        self.hold(REDUCE_INPUT, of_unit, -self.reduced[of_unit])

    def reduce(self, u: int) -> None:
        """_wait_for_post_backward, then foreach_reduce."""
        step, shard = self.step, self.step.mesh.shard
        if self.post_reduce[u] != NO_SLOT:
            self.emit((WAIT_POST, self.post_reduce[u]), u, P_BACKWARD)
        self.free_all_reduced(u)
        all_reduces = step.mesh.replicate > 1 and self.flags.all_reduce
        partial = step.mesh.replicate > 1 and not self.flags.all_reduce
        at, id_ = u * UNIT_NS, self.reductions
        self.reductions += 1
        self.hold(REDUCE_INPUT, u, self.reduced[u])
        op = (
            REDUCE,
            id_,
            self.rest + H_REDUCE,
            at + REDUCE_COPY_IN,
            at + RS if shard > 1 else NO_SLOT,
            REDUCE_COMM if step.separate_reduce_scatter_group else SHARD_COMM,
            at + AR if all_reduces else NO_SLOT,
        )
        self.emit(op, u, P_BACKWARD, u)
        self.hold(GRADS, u, -self.grads[u] - self.accumulated[u])
        self.grads[u] = self.accumulated[u] = 0
        self.settle(u, self.reduced[u] // shard, partial)
        self.post_reduce[u] = id_
        self.reduced_since = True
        self.scatters.append((id_, u))

    def free_all_reduced(self, u: int) -> None:
        self.hold(REDUCE_OUTPUT, u, -self.all_reduced[u])
        self.all_reduced[u] = 0

    def settle(self, u: int, output: int, partial: bool) -> None:
        """The reduced gradients find their place; see `foreach_reduce`."""
        self.hold(REDUCE_OUTPUT, u, output)
        before, self.partial[u] = self.partial[u], output if partial else 0
        if not partial:
            self.to_sharded_grads(u, output)
        self.hold(REDUCE_OUTPUT, u, -before)

    def to_sharded_grads(self, u: int, output: int) -> None:
        """Cast to the stored dtype, they become the gradients or are added to them."""
        unit, whole = self.step.units[u], self.sharded_grad_bytes[u]
        grad = whole // unit.pieces
        new = min(grad, whole - self.sharded_grads[u])
        self.sharded_grads[u] += new
        if new and unit.reduces_in_stored_dtype:  # the output itself becomes them
            self.hold(REDUCE_OUTPUT, u, -output)
            self.hold(SHARDED_GRADS, u, new)
            return
        cast = 0 if unit.reduces_in_stored_dtype else grad
        self.hold(SHARDED_GRADS, u, cast)
        if self.step.mesh.replicate > 1:
            self.all_reduced[u] = output
        else:
            self.hold(REDUCE_OUTPUT, u, -output)
        self.hold(SHARDED_GRADS, u, new - cast)

    def finalize_backward(self, u: int) -> None:
        if self.reduced_since:
            self.emit((FINALIZE, LAST), u, P_BACKWARD, u)
            self.reduced_since = False
        self.post_reduce[u] = NO_SLOT
        self.free_all_reduced(u)
        if self.pending[u] >= 0:
            self.emit((WAIT_GATHER, self.pending[u]), u, P_BACKWARD)
            self.hold(GATHER_OUTPUT, u, -self.gathered[u])
        self.pending[u] = NO_SLOT
        self.indices[u].clear()
