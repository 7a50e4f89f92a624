"""A simulated run, as if it had been recorded: the same tables, measures, pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    ITEMSIZE,
    NO_TIME,
    ROOT,
    UNKNOWN,
    Evidence,
    Flag,
    GroupSpec,
    Hook,
    Kind,
    Lane,
    MemorySamples,
    ModelSpec,
    Phase,
    RankHeader,
    Spans,
    StepRecord,
    UnitSpec,
)
from fsdpdoctor.simulate.engine.opcodes import (
    COMMS,
    COMPUTE,
    FINALIZE,
    GATHER,
    H_FINAL,
    H_POST_BACKWARD,
    H_POST_FORWARD,
    H_PRE_BACKWARD,
    H_PRE_FORWARD,
    H_ROOT,
    HOST,
    REDUCE,
    REPLICATE_COMM,
    RESHARD,
    SHARD_COMM,
    SYNC,
    USE,
    WAIT_GATHER,
    WAIT_POST,
    WAIT_SCATTER,
    Held,
    Meta,
    Op,
    Program,
    durations,
)
from fsdpdoctor.simulate.engine.opcodes import ROOT as ROOT_OP
from fsdpdoctor.simulate.engine.schedule import program
from fsdpdoctor.simulate.engine.simulate import walk
from fsdpdoctor.simulate.engine.step import Checkpoint, Step, Unit
from fsdpdoctor.simulate.engine.timing import Clock, Times, Walk

EVIDENCE = (
    Evidence.UNITS,
    Evidence.CONFIG,
    Evidence.PREFETCH,
    Evidence.STEPS,
    Evidence.MICRO_BATCHES,
    Evidence.STALLS,
    Evidence.COLLECTIVES,
    Evidence.ISSUE_TIMES,
    Evidence.HOST,
    Evidence.SYNC_CALLS,
    Evidence.INPUT,
    Evidence.OPTIMIZER,
    Evidence.WINDOWS,
)
"""What a simulated run shows: all that a recorded one does, but the allocator."""

HOOKS = {
    H_ROOT: Hook.ROOT_PRE_FORWARD,
    H_PRE_FORWARD: Hook.PRE_FORWARD,
    H_POST_FORWARD: Hook.POST_FORWARD,
    H_PRE_BACKWARD: Hook.PRE_BACKWARD,
    H_POST_BACKWARD: Hook.POST_BACKWARD,
    H_FINAL: Hook.ROOT_POST_BACKWARD_CALLBACK,
}
"""FSDP2's hooks by their cost in a program: the names that the recorder gives them."""

OPS_PER_STEP = 1 << 20
"""Spreads `op` ids, so that they are unique over a run's steps."""


def record(step: Step, steps: int = 4, first: int = 3) -> RankData:
    """Consecutive steps of the steady state, numbered from `first`.

    Four are one more than what measures want to judge, from past their warm-up.
    """
    plan, ns = program(step), durations(step)
    records = []
    for at, (clock, walked) in enumerate(walk(step, plan, ns, steps)):
        rows = _Rows(step=step, plan=plan, number=first + at, clock=clock)
        rows.fill(walked)
        records.append(rows.record(walked))
    names = tuple(HOOKS.values())
    return RankData(header=header(step), steps=tuple(records), names=names)


def header(step: Step) -> RankHeader:
    """What a rank of the simulated job would say of itself."""
    roots = step.root.units
    again = {
        u
        for node in step.root.walk()
        if node.checkpoint is Checkpoint.NON_REENTRANT
        for u in node.units
    }
    return RankHeader(
        rank=0,
        world_size=step.mesh.world_size,
        device="cpu" if step.blocking else "cuda",
        clock="host" if step.blocking else "cuda",
        evidence=EVIDENCE,
        units=tuple(
            replace(_spec(step, u, at in roots), checkpointed=at in again)
            for at, u in enumerate(step.units)
        ),
        groups=_groups(step),
        model=ModelSpec(wrapper="fsdp2", numel=sum(u.numel for u in step.units)),
        ended="done",
    )


def _groups(step: Step) -> tuple[GroupSpec, ...]:
    """By communicator, in the order of their numbers."""
    mesh = step.mesh
    sizes = {u.reshard_after_forward for u in step.units} - {True, False}
    small = int(max(sizes, default=1))
    return (
        GroupSpec(name="shard", ranks=(), size=mesh.shard, role="shard"),
        GroupSpec(name="reduce_scatter", ranks=(), size=mesh.shard, role="shard"),
        GroupSpec(name="replicate", ranks=(), size=mesh.replicate, role="replicate"),
        GroupSpec(name="post_forward", ranks=(), size=small, role="post_forward"),
    )


def _spec(step: Step, unit: Unit, is_root: bool) -> UnitSpec:
    shards = step.mesh.shard
    gathered = unit.gathered_bytes(shards)
    padded, trainable = unit.padded(shards)[0], unit.padded(1)[1]
    itemsize = ITEMSIZE[unit.orig_dtype]
    return UnitSpec(
        fqn=unit.fqn if not is_root else ROOT,
        module_class="",
        is_root=is_root,
        numel=unit.numel,
        trainable_numel=trainable,
        frozen_numel=unit.numel - trainable,
        param_bytes=unit.numel * itemsize,
        unsharded_bytes=gathered,
        shard_bytes=padded // shards * itemsize,
        padding_bytes=(padded - unit.numel) * unit.gather_itemsize,
        orig_dtype=unit.orig_dtype,
        param_dtype=unit.param_dtype,
        reduce_dtype=unit.reduce_dtype,
        gather_dtype=unit.param_dtype or unit.orig_dtype,
        reshard_after_forward=unit.reshard_after_forward,
        unshard_in_backward=unit.unshard_in_backward,
        unshard_async_op=unit.unshard_async_op,
        reduce_scatter_max_input_buffers=step.max_input_buffers,
        separate_reduce_scatter_group=step.separate_reduce_scatter_group,
        forward_prefetch=unit.forward_prefetch,
        backward_prefetch=unit.backward_prefetch,
        shard_group=SHARD_COMM,
        replicate_group=REPLICATE_COMM if step.mesh.replicate > 1 else UNKNOWN,
    )


class _Span(NamedTuple):
    """One row of `Spans`; its fields are columns of that table."""

    kind: int
    lane: int
    phase: int
    unit: int
    start_ns: int
    end_ns: int
    micro_batch: int = UNKNOWN
    by_unit: int = UNKNOWN
    flags: int = 0
    op: int = UNKNOWN
    issued_ns: int = NO_TIME
    bytes: int = UNKNOWN
    group: int = UNKNOWN
    seq: int = UNKNOWN
    name: int = UNKNOWN


@dataclass(slots=True, kw_only=True)
class _Rows:
    """One step's spans, in the making."""

    step: Step
    plan: Program
    number: int
    clock: Clock
    spans: list[_Span] = field(default_factory=list)
    gathers: dict[int, tuple[int, int]] = field(default_factory=dict)  # slot: op, unit
    reductions: dict[int, tuple[int, int]] = field(default_factory=dict)
    opened: dict[int, _Span] = field(default_factory=dict)  # windows, by unit
    seq: list[int] = field(default_factory=lambda: [0] * COMMS)
    last_scatter: int = UNKNOWN  # ids of reductions
    last_all_reduce: int = UNKNOWN

    def fill(self, walked: Walk) -> None:
        handlers = {
            COMPUTE: self.compute,
            GATHER: self.gather,
            USE: self.use,
            RESHARD: self.reshard,
            REDUCE: self.reduce,
            SYNC: self.sync,
            WAIT_GATHER: self.wait_gather,
            WAIT_SCATTER: self.wait_reduce,
            WAIT_POST: self.wait_reduce,
            FINALIZE: self.finalize,
        }
        plan = self.plan
        for op, meta, at in zip(plan.ops, plan.meta, walked.times, strict=True):
            if (handler := handlers.get(op[0])) is not None:
                handler(op, meta, at)
            if op[0] in (HOST, ROOT_OP):
                self.on_host(op[1] - plan.rest, meta, at)
        for span in self.opened.values():
            self.spans.append(span._replace(end_ns=walked.end.compute_ns))
        self.calls(walked)

    def add(
        self,
        kind: Kind,
        lane: Lane,
        meta: Meta,
        start: int,
        end: int,
        op: int = UNKNOWN,
    ) -> _Span:
        unit, phase, micro_batch, by_unit, flags, _ = meta
        span = _Span(kind, lane, phase, unit, start, end, micro_batch, by_unit, flags)
        span = span._replace(op=op)
        self.spans.append(span)
        return span

    def id(self) -> int:
        """The `op` of a new unshard or reduction."""
        used = len(self.gathers) + len(self.reductions)
        return self.number * OPS_PER_STEP + used

    def collective(self, span: _Span, issued: int, size: int, comm: int) -> None:
        """Complete the span that was added last as a collective."""
        seq, self.seq[comm] = self.seq[comm], self.seq[comm] + 1
        self.spans[-1] = span._replace(
            issued_ns=issued, bytes=size, group=comm, seq=self.number * 100_000 + seq
        )

    def on_host(self, cost: int, meta: Meta, at: Times) -> None:
        if cost not in HOOKS:
            self.add(Kind.INPUT, Lane.HOST, meta, at[0], at[1])
            return
        span = self.add(Kind.HOOK, Lane.HOST, meta, at[0], at[1])
        self.spans[-1] = span._replace(name=list(HOOKS).index(cost))

    def compute(self, op: Op, meta: Meta, at: Times) -> None:
        if meta[1] == Phase.OPTIMIZER:
            self.add(Kind.OPTIMIZER, Lane.COMPUTE, meta, at[2], at[3])

    def gather(self, op: Op, meta: Meta, at: Times) -> None:
        host, enqueued, copy, copied, start, end = at
        unit, blocks = meta[0], self.step.blocking and not op[6]
        id_ = self.id()
        first = Flag.FIRST if not self.gathers else 0
        flags = meta[4] | first | (Flag.BLOCKING if blocks else 0)
        meta = (*meta[:4], flags, meta[5])
        self.gathers[op[1]] = id_, unit
        self.add(Kind.UNSHARD, Lane.HOST, meta, host, enqueued, id_)
        if copied > copy:
            self.add(Kind.COPY_IN, Lane.COPY_IN, meta, copy, copied, id_)
        size = self.step.units[unit].gathered_bytes(self.step.mesh.shard)
        span = self.add(Kind.ALL_GATHER, Lane.ALL_GATHER, meta, start, end, id_)
        issued = copied if self.step.blocking else enqueued
        self.collective(span, issued, size, op[5])
        if blocks:
            self.add(Kind.ALL_GATHER_WAIT, Lane.COMPUTE, meta, copied, end, id_)

    def use(self, op: Op, meta: Meta, at: Times) -> None:
        _, _, stall, until, copy, copied = at
        unit = meta[0]
        id_ = self.gathers[op[1]][0] if op[1] in self.gathers else UNKNOWN
        if until > stall:
            self.add(Kind.ALL_GATHER_WAIT, Lane.COMPUTE, meta, stall, until, id_)
        if copied > copy:
            self.add(Kind.COPY_OUT, Lane.COMPUTE, meta, copy, copied, id_)
        size = self.step.units[unit].gathered_bytes(self.step.mesh.shard)
        window = self.add(Kind.UNSHARDED, Lane.UNSHARDED, meta, copied, copied, id_)
        self.spans.pop()  # it ends when the unit is resharded
        self.opened[unit] = window._replace(bytes=size)

    def reshard(self, op: Op, meta: Meta, at: Times) -> None:
        self.add(Kind.RESHARD, Lane.HOST, meta, at[0], at[1])
        if (span := self.opened.pop(meta[0], None)) is not None:
            self.spans.append(span._replace(end_ns=at[2]))

    def reduce(self, op: Op, meta: Meta, at: Times) -> None:
        host, enqueued, copy, copied, start, end, ar_start, ar_end = at
        step, unit = self.step, meta[0]
        id_ = self.id()
        self.reductions[op[1]] = id_, unit
        blocks = step.blocking
        meta = (*meta[:4], meta[4] | (Flag.BLOCKING if blocks else 0), meta[5])
        self.add(Kind.REDUCE, Lane.HOST, meta, host, enqueued, id_)
        if copied > copy:
            self.add(Kind.REDUCE_COPY_IN, Lane.COMPUTE, meta, copy, copied, id_)
        size = step.units[unit].reduced_bytes(step.mesh.shard)
        issued = copied if blocks else enqueued
        if op[4] >= 0:
            self.last_scatter = op[1]
            span = self.add(
                Kind.REDUCE_SCATTER, Lane.REDUCE_SCATTER, meta, start, end, id_
            )
            self.collective(span, issued, size, op[5])
            if blocks:
                self.add(Kind.REDUCE_SCATTER_WAIT, Lane.COMPUTE, meta, copied, end, id_)
        if op[6] >= 0:
            self.last_all_reduce = op[1]
            span = self.add(
                Kind.ALL_REDUCE, Lane.ALL_REDUCE, meta, ar_start, ar_end, id_
            )
            self.collective(span, issued, size // step.mesh.shard, REPLICATE_COMM)
            if blocks:
                self.add(Kind.ALL_REDUCE_WAIT, Lane.COMPUTE, meta, end, ar_end, id_)

    def sync(self, op: Op, meta: Meta, at: Times) -> None:
        if at[1] > at[0]:
            self.add(Kind.SYNC, Lane.HOST, meta, at[0], at[1])

    def wait_gather(self, op: Op, meta: Meta, at: Times) -> None:
        if at[3] > at[2]:
            id_ = self.gathers[op[1]][0]
            self.add(Kind.ALL_GATHER_WAIT, Lane.COMPUTE, meta, at[2], at[3], id_)

    def wait_reduce(self, op: Op, meta: Meta, at: Times) -> None:
        self.stalls(op[1], op[1], meta, at)

    def finalize(self, op: Op, meta: Meta, at: Times) -> None:
        self.stalls(self.last_scatter, self.last_all_reduce, meta, at)

    def stalls(self, scatter: int, all_reduce: int, meta: Meta, at: Times) -> None:
        """For a reduce-scatter until at[3], then for an all-reduce until at[4]."""
        for kind, reduction, start, end in (
            (Kind.REDUCE_SCATTER_WAIT, scatter, at[2], at[3]),
            (Kind.ALL_REDUCE_WAIT, all_reduce, at[3], at[4]),
        ):
            if end > start:
                id_, unit = self.reductions[reduction]
                of_unit = (unit, *meta[1:])
                self.add(kind, Lane.COMPUTE, of_unit, start, end, id_)

    def calls(self, walked: Walk) -> None:
        """The units' forwards and backwards, and the micro-batches."""
        reached = list(_compute_lane(self.clock, self.plan, walked))
        hosts = [at[0] for at in walked.times]
        ends = [at[1] for at in walked.times]

        def span_of(first: int, last: int) -> tuple[int, int]:
            # An event on an idle stream is done when the host enqueues it.
            return max(reached[first], hosts[first]), max(reached[last + 1], ends[last])

        for unit, phase, micro_batch, first, last, flags in self.plan.passes:
            if last < first:
                continue
            recomputes = flags & Flag.RECOMPUTE or phase == Phase.FORWARD
            kind = Kind.FORWARD if recomputes else Kind.BACKWARD
            meta = (unit, phase, micro_batch, UNKNOWN, flags, UNKNOWN)
            self.add(kind, Lane.COMPUTE, meta, *span_of(first, last))
        for at, (first, last) in enumerate(self.plan.micro_batches):
            meta = (UNKNOWN, Phase.OTHER, at, UNKNOWN, 0, UNKNOWN)
            self.add(Kind.MICRO_BATCH, Lane.HOST, meta, *span_of(first, last))

    def record(self, walked: Walk) -> StepRecord:
        columns = zip(*self.spans, strict=True)
        return StepRecord(
            step=self.number,
            start_ns=self.clock.compute_ns,
            end_ns=walked.end.compute_ns,
            host_start_ns=self.clock.host_ns,
            host_end_ns=walked.end.host_ns,
            micro_batches=len(self.step.micro_batches),
            spans=Spans.build(
                len(self.spans), **dict(zip(_Span._fields, columns, strict=True))
            ),
            memory=memory(self.step, self.plan, walked),
        )


def _compute_lane(clock: Clock, plan: Program, walked: Walk) -> Iterator[int]:
    """How far the compute lane's work reaches before each operation, and at the end."""
    now = clock.compute_ns
    for op, at in zip(plan.ops, walked.times, strict=True):
        yield now
        if op[0] in (COMPUTE, USE, WAIT_GATHER, WAIT_SCATTER, WAIT_POST, FINALIZE):
            now = max(now, at[-1])
        elif (op[0] == GATHER and op[6]) or op[0] == REDUCE:
            now = max(now, at[3])
        elif op[0] == RESHARD and op[2] >= 0:
            now = max(now, at[2])
    yield now


def memory(step: Step, plan: Program, walked: Walk) -> MemorySamples:
    """Allocated and gathered bytes, one row per operation that changes them.

    Times are the host's: the allocator gives and takes when the host calls.
    """
    live, unsharded = step.resident_bytes, 0
    rows: list[tuple[int, int, int, int, int]] = []
    for at, held, unit, delta in plan.moves:
        live += delta
        unsharded += delta if held == Held.GATHERED else 0
        time = walked.times[at][0] if at < len(walked.times) else walked.end.host_ns
        rows.append((time, unit, live, live, unsharded))
    names = ("time_ns", "unit", "allocated_bytes", "peak_bytes", "unsharded_bytes")
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return MemorySamples.build(len(rows), **dict(zip(names, columns, strict=True)))
