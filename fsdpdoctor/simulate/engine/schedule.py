"""FSDP2's own rules: from a `Step` to the calls that the host makes, in order.

[Note: Program and times]
What FSDP2 does, and in which order, does not depend on how long anything takes: no
rule of it asks a clock. So the rules run once, here, and give a flat list of
operations; `timing` then walks that list with durations. Memory follows the same
order: the caching allocator hands memory out and takes it back when the host calls,
not when a kernel runs, so that the peak is known here too, exactly.

The rules are those of torch 2.13, `_fully_shard/_fsdp_param_group.py` and
`_fsdp_state.py`; methods here carry the names of the functions they follow.
"""

from __future__ import annotations

import math
from collections import deque

from fsdpdoctor.schema import UNKNOWN
from fsdpdoctor.simulate.engine.opcodes import (
    AFTER,
    BEFORE,
    BWD,
    COMPUTE,
    F_BACKWARD_PREFETCH,
    F_FORWARD_PREFETCH,
    F_RECOMPUTE,
    FLUSH,
    FWD,
    GATHERED,
    H_FINAL,
    H_ROOT,
    HOST,
    HOST_AFTER,
    HOST_BWD,
    HOST_FWD,
    HOST_LOSS,
    INPUT,
    LOSS,
    P_BACKWARD,
    P_FORWARD,
    P_OPTIMIZER,
    P_OTHER,
    RECOMPUTE,
    ROOT,
    SEGMENT_NS,
    SHARDED_GRADS,
    SYNC,
    Op,
    Pass,
    Program,
)
from fsdpdoctor.simulate.engine.param_groups import (
    FORWARD,
    IDLE,
    NO_SLOT,
    POST_BACKWARD,
    PRE_BACKWARD,
    ParamGroups,
)
from fsdpdoctor.simulate.engine.step import Checkpoint, Node, Step


def program(step: Step) -> Program:
    """What FSDP2 does in this step."""
    return _Fsdp2(step).run()


def bare_program(step: Step) -> Program:
    """The same for a search: without `meta`, `moves` and `passes`."""
    return _BareFsdp2(step).run()


class _Fsdp2(ParamGroups):
    """What the hooks of the modules make of it: `_fsdp_state.py`."""

    def run(self) -> Program:
        step, spans = self.step, []
        if step.before_ns:
            self.emit((COMPUTE, self.rest + BEFORE, NO_SLOT), UNKNOWN, P_OTHER)
        for self.micro_batch, self.flags in enumerate(step.micro_batches):
            if step.input_ns:
                self.emit((HOST, self.rest + INPUT), UNKNOWN, P_OTHER)
            first = len(self.ops)
            self.forward(step.root)
            if step.loss_ns or step.host_loss_ns:
                op = (COMPUTE, self.rest + LOSS, self.rest + HOST_LOSS)
                self.emit(op, UNKNOWN, P_OTHER)
            if step.sync_after_forward:
                self.emit((SYNC,), UNKNOWN, P_OTHER)
            self.in_backward = True
            self.backward(step.root)
            self.root_post_backward_final_callback()
            self.in_backward = False
            spans.append((first, len(self.ops) - 1))
        if step.after_ns or step.host_after_ns:
            op = (COMPUTE, self.rest + AFTER, self.rest + HOST_AFTER)
            self.emit(op, UNKNOWN, P_OPTIMIZER)
        if step.sync_at_end:
            self.emit((SYNC,), UNKNOWN, P_OTHER)
        for u, held in enumerate(self.sharded_grads):
            self.hold(SHARDED_GRADS, u, -held)  # zero_grad
            self.free_kept(u)
        return Program(
            ops=tuple(self.ops),
            meta=tuple(self.meta),
            moves=tuple(self.moves),
            passes=tuple(self.passes),
            micro_batches=tuple(spans),
            rest=self.rest,
            slots=self.slots,
            reductions=self.reductions,
            peak_bytes=self.peak,
            gathered_peak_bytes=self.peak_gathered,
        )

    def forward(self, node: Node, flags: int = 0) -> None:
        """FSDPState._pre_forward, the module's forward, FSDPState._post_forward."""
        # The root has a state even where all its parameters are in other units.
        unit = node.units[0] if node.units else UNKNOWN
        has_state = bool(node.units) or node is self.step.root
        starts_iteration = has_state and not self.iter_root
        phase = P_BACKWARD if self.in_backward else P_FORWARD
        if starts_iteration:
            self.iter_root = True
            self.emit((ROOT, self.rest + H_ROOT), unit, phase)
        for u in node.units:
            self.pre_forward(u, flags)
        for u in node.units:
            for target in self.step.units[u].forward_prefetch:
                self.unshard(target, FORWARD, u, flags | F_FORWARD_PREFETCH)
        first = len(self.ops)
        for item in node.items:
            if isinstance(item, Node):
                self.forward(item, flags)
            else:
                self.compute_forward(item, flags)
        last = len(self.ops) - 1
        for u in node.units:
            self.passes.append(Pass(u, phase, self.micro_batch, first, last, flags))
            self.post_forward(u)
        if starts_iteration:
            self.iter_root = False
            self.flush(unit)

    def backward(self, node: Node, begun: bool = False) -> None:
        """A module's backward, with FSDPState._pre_backward before it."""
        if not node.runs_backward:
            return
        units = self.step.units
        if node.units and units[node.units[0]].pieces > 1:
            self.backward_in_pieces(node)
            return
        if node.checkpoint is Checkpoint.REENTRANT:
            # No hook was registered by the first forward: it ran without gradients.
            self.forward(node, F_RECOMPUTE)
        if not begun:
            self.begin_backward(node)
        first = len(self.ops)
        if node.checkpoint is Checkpoint.NON_REENTRANT:
            for item in node.items:
                if isinstance(item, Node):
                    self.forward(item, F_RECOMPUTE)
                else:
                    self.compute_forward(item, F_RECOMPUTE)
        for at in reversed(range(len(node.items))):
            item = node.items[at]
            if isinstance(item, Node):
                child_began = node.passes_output_on and at == len(node.items) - 1
                self.backward(item, child_began)
            else:
                self.compute_backward(item)
        last, mb = len(self.ops) - 1, self.micro_batch
        for u in reversed(node.units):
            self.passes.append(Pass(u, P_BACKWARD, mb, first, last, 0))
            self.grow_grads(u, self.grad_bytes[u])
            if not units[u].post_backward_at_end:
                self.post_backward(u)

    def begin_backward(self, node: Node) -> None:
        """FSDPState._pre_backward. Hooks on one tensor run as they were registered: a
        child's before its parent's, where both put out the same.
        """
        last = node.items[-1] if node.passes_output_on and node.items else None
        if isinstance(last, Node):
            self.begin_backward(last)
        for u in node.units:
            self.pre_backward(u)
        for u in node.units:
            for target in self.step.units[u].backward_prefetch:
                self.unshard(target, PRE_BACKWARD, u, F_BACKWARD_PREFETCH)

    def backward_in_pieces(self, node: Node) -> None:
        """Several modules of one unit, each recomputed by itself (reentrantly).

        The unit's pre-forward hook runs for each of them, its post-forward hook, and
        with it pre-backward, for the last one only; each one's inputs have a
        post-backward, which reshards the unit and reduces what has gradients.
        """
        (u,) = node.units
        unit = self.step.units[u]
        first = next(item for item in node.items if isinstance(item, Node))
        to_prefetch = unit.forward_prefetch
        for item in reversed(node.items):
            if not isinstance(item, Node):
                self.compute_backward(item)
                continue
            opened = len(self.ops)
            if not self.iter_root:
                self.iter_root = True
                self.emit((ROOT, self.rest + H_ROOT), u, P_BACKWARD)
            self.pre_forward(u, F_RECOMPUTE)
            for target in to_prefetch:
                flags = F_RECOMPUTE | F_FORWARD_PREFETCH
                self.unshard(target, FORWARD, u, flags)
            to_prefetch = ()  # once, as the unit's FSDPState begins its forward
            for inner in item.items:
                if not isinstance(inner, Node):
                    self.compute_forward(inner, F_RECOMPUTE)
            if item is first:
                self.post_forward(u)
                self.iter_root = False
                self.flush(u)
                self.begin_backward(node)
            for inner in reversed(item.items):
                if not isinstance(inner, Node):
                    self.compute_backward(inner)
            last, mb = len(self.ops) - 1, self.micro_batch
            self.passes.append(Pass(u, P_BACKWARD, mb, opened, last, 0))
            piece = self.grad_bytes[u] // unit.pieces
            self.grow_grads(u, max(piece - self.grads[u], 0))
            self.post_backward(u)

    def flush(self, unit: int) -> None:
        """The deferred copy-out is waited for, as an iteration's root ends."""
        if self.deferred != NO_SLOT:
            phase = P_BACKWARD if self.in_backward else P_FORWARD
            self.emit((FLUSH,), unit, phase)
            self.free_deferred()

    def compute_forward(self, segment: int, flags: int) -> None:
        at = self.segments_at + segment * SEGMENT_NS
        s = self.step.segments[segment]
        self.with_others(s.other_forward_bytes)
        what = RECOMPUTE if flags & F_RECOMPUTE else FWD
        phase = P_BACKWARD if self.in_backward else P_FORWARD
        owners = self.owners[segment]
        unit = owners[0] if owners else UNKNOWN
        self.ops.append((COMPUTE, at + what, at + HOST_FWD))
        self.meta.append((unit, phase, self.micro_batch, UNKNOWN, flags, segment))
        if s.sync:
            self.emit((SYNC,), unit, phase)

    def compute_backward(self, segment: int) -> None:
        at = self.segments_at + segment * SEGMENT_NS
        owners, share = self.owners[segment], self.share[segment]
        for u in owners:
            self.grow_grads(u, math.ceil(self.grad_bytes[u] * share))
        self.with_others(self.step.segments[segment].other_backward_bytes)
        self.ops.append((COMPUTE, at + BWD, at + HOST_BWD))
        unit = owners[0] if owners else UNKNOWN
        self.meta.append((unit, P_BACKWARD, self.micro_batch, UNKNOWN, 0, segment))

    def with_others(self, other: int) -> None:
        """The peak, while a segment's own memory lies on top of FSDP2's."""
        if self.live + other > self.peak:
            self.peak = self.live + other

    def root_post_backward_final_callback(self) -> None:
        last = self.flags.is_last_backward
        root = self.step.root.units
        unit = root[0] if root else UNKNOWN
        self.emit((HOST, self.rest + H_FINAL), unit, P_BACKWARD, unit)
        for node in self.nodes:
            for u in reversed(node.units):
                if self.state[u] != POST_BACKWARD:
                    self.post_backward(u)
                self.state[u] = IDLE
            if last:
                for u in node.units:
                    self.finalize_backward(u)
        if last:
            self.order.clear()
            while self.scatters:
                self.wait_for_oldest_scatter()


class _BareFsdp2(_Fsdp2):
    """Keeps the operations and the peaks, and forgets what they were about."""

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self.meta = deque(maxlen=0)

    def emit(
        self, op: Op, unit: int, phase: int, by_unit: int = UNKNOWN, flags: int = 0
    ) -> None:
        self.ops.append(op)

    def hold(self, held: int, unit: int, delta: int) -> None:
        live = self.live = self.live + delta
        if live > self.peak:
            self.peak = live
        if held == GATHERED:
            live = self.live_gathered = self.live_gathered + delta
            if live > self.peak_gathered:
                self.peak_gathered = live
