"""A synthetic FSDP2 rank on a device, of any size: what a trace of one would hold.

Shapes are of a public Llama 70B job on 8x MI300X: an all-gather of 1632 MiB takes
6.04 ms, a reduce-scatter of 3264 MiB 11.66 ms; everything else is made up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fsdpdoctor.quantities import MIB, US
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    ROOT,
    UNKNOWN,
    Evidence,
    Flag,
    GroupSpec,
    Kind,
    Lane,
    Phase,
    RankHeader,
    Spans,
    StepRecord,
    UnitSpec,
)
from fsdpdoctor.schema.string_table import StringTable

GATHER_NS, SCATTER_NS = 6_040_000, 11_660_000
GATHER_BYTES, SCATTER_BYTES = 1632 * MIB, 3264 * MIB
EPOCH_NS = 1_790_857_026_000_000_000


@dataclass(slots=True, kw_only=True)
class _Drawing:
    """A step in the making: a host clock, and when each lane is free."""

    kernels: int
    kernel_ns: int
    host: int
    names: StringTable
    rows: list[dict[str, int]] = field(default_factory=list)
    compute: int = 0
    gather: int = 0
    scatter: int = 0
    seq: int = 0
    op: int = 0

    def add(self, kind: Kind, lane: Lane, start: int, end: int, **more: int) -> None:
        self.rows.append(
            {"kind": kind, "lane": lane, "start_ns": start, "end_ns": end, **more}
        )

    def hook(self, name: str, unit: int, phase: Phase, length: int) -> tuple[int, int]:
        """A hook that begins now; when it begins and ends."""
        begins, ends = self.host, self.host + length
        self.add(
            Kind.HOOK,
            Lane.HOST,
            begins,
            ends,
            unit=unit,
            phase=phase,
            name=self.names.id(name),
        )
        self.host = ends + 2 * US
        return begins, ends

    def unshard(self, unit: int, by: int, phase: Phase, flags: Flag, at: int) -> int:
        """A gather issued at `at`; its op."""
        self.op += 1
        shared = {"unit": unit, "by_unit": by, "phase": phase, "flags": flags}
        shared["op"] = self.op
        self.add(Kind.UNSHARD, Lane.HOST, at, at + 20 * US, **shared)
        start = max(self.gather, at + 12 * US)
        copied = start + 200 * US
        self.add(
            Kind.COPY_IN, Lane.COPY_IN, start, copied, issued_ns=at + 3 * US, **shared
        )
        self.gather = copied + GATHER_NS
        self.add(
            Kind.ALL_GATHER,
            Lane.ALL_GATHER,
            copied,
            self.gather,
            issued_ns=at + 9 * US,
            bytes=GATHER_BYTES,
            group=0,
            seq=self.seq,
            **shared,
        )
        self.seq += 1
        return self.op

    def copy_out(self, op: int, unit: int, phase: Phase, flags: Flag, at: int) -> None:
        """Compute waits for the gather and copies its output out."""
        by = unit + 1 if flags & Flag.BACKWARD_PREFETCH else unit
        start = max(self.compute, self.gather, at + US)
        self.compute = start + 300 * US
        self.add(
            Kind.COPY_OUT,
            Lane.COMPUTE,
            start,
            self.compute,
            unit=unit,
            by_unit=by,
            phase=phase,
            flags=flags,
            op=op,
            issued_ns=at,
        )

    def work(self, unit: int, phase: Phase) -> None:
        """The unit's kernels."""
        for _ in range(self.kernels):
            start = max(self.compute, self.host + US)
            self.compute = start + self.kernel_ns
            self.add(
                Kind.KERNEL,
                Lane.COMPUTE,
                start,
                self.compute,
                unit=unit,
                phase=phase,
                issued_ns=self.host,
                name=self.names.id("gemm"),
            )
            self.host += 5 * US

    def reduce(self, unit: int) -> None:
        """Gradients of a unit are reduced."""
        self.op += 1
        at = self.host
        shared = {"unit": unit, "by_unit": unit, "op": self.op}
        shared["phase"] = Phase.BACKWARD
        self.add(Kind.RESHARD, Lane.HOST, at - 3 * US, at - US, unit=unit, phase=2)
        self.add(Kind.REDUCE, Lane.HOST, at, at + 30 * US, **shared)
        start = max(self.compute, at + 4 * US)
        self.compute = start + 400 * US
        self.add(
            Kind.REDUCE_COPY_IN,
            Lane.COMPUTE,
            start,
            self.compute,
            issued_ns=at + 2 * US,
            **shared,
        )
        begins = max(self.scatter, self.compute)
        self.scatter = begins + SCATTER_NS
        self.add(
            Kind.REDUCE_SCATTER,
            Lane.REDUCE_SCATTER,
            begins,
            self.scatter,
            issued_ns=at + 10 * US,
            bytes=SCATTER_BYTES,
            group=0,
            seq=self.seq,
            **shared,
        )
        self.seq += 1
        self.host += 32 * US


def generated_rank(
    *,
    rank: int = 0,
    world_size: int = 8,
    layers: int = 4,
    steps: int = 2,
    kernels: int = 6,
    kernel_ns: int = 400 * US,
) -> RankData:
    """A rank that prefetches backward, as FSDP2 does by default."""
    names = StringTable()
    drawing = _Drawing(kernels=kernels, kernel_ns=kernel_ns, host=EPOCH_NS, names=names)
    records = [_step(drawing, step, layers) for step in range(steps)]
    return RankData(
        header=RankHeader(
            rank=rank,
            world_size=world_size,
            device="cuda",
            clock="cuda",
            units=tuple(
                UnitSpec(fqn=fqn, module_class="Block", is_root=fqn == ROOT)
                for fqn in (ROOT, *(f"layers.{i}" for i in range(layers)))
            ),
            groups=(
                GroupSpec(
                    name="0",
                    ranks=tuple(range(world_size)),
                    size=world_size,
                    backend="nccl",
                    role="world",
                ),
            ),
            evidence=(Evidence.UNITS, Evidence.STEPS, Evidence.KERNELS),
        ),
        steps=tuple(records),
        names=names.all,
    )


def _step(drawing: _Drawing, step: int, layers: int) -> StepRecord:
    begins = drawing.host
    drawing.compute = max(drawing.compute, begins)
    drawing.rows = []
    drawing.host += 10 * US
    micro_batch = drawing.host
    drawing.host += 2 * US
    units = list(range(layers + 1))
    for unit in units:
        at = drawing.host
        op = drawing.unshard(unit, unit, Phase.FORWARD, Flag.NONE, at + US)
        drawing.hook("pre_forward", unit, Phase.FORWARD, 40 * US)
        drawing.copy_out(op, unit, Phase.FORWARD, Flag.NONE, at + 30 * US)
        drawing.work(unit, Phase.FORWARD)
        if unit:
            drawing.hook("post_forward", unit, Phase.FORWARD, 3 * US)
    drawing.hook("post_forward", 0, Phase.FORWARD, 3 * US)
    _backward(drawing, units)
    drawing.host += 5 * US
    drawing.add(Kind.MICRO_BATCH, Lane.HOST, micro_batch, drawing.host)
    drawing.host += 5 * US
    drawing.work(UNKNOWN, Phase.OPTIMIZER)
    drawing.host += 100 * US
    ends, drawing.host = drawing.host, drawing.host + 50 * US
    spans = _spans(drawing.rows)
    return StepRecord(
        step=step,
        start_ns=begins,
        end_ns=max(drawing.compute, ends),
        host_start_ns=begins,
        host_end_ns=ends,
        micro_batches=1,
        spans=spans,
    )


def _spans(rows: list[dict[str, int]]) -> Spans:
    absent = {name: int(getattr(Spans.build(1), name)[0]) for name in Spans.columns()}
    return Spans.build(
        len(rows),
        **{
            name: [row.get(name, nothing) for row in rows]
            for name, nothing in absent.items()
        },
    )


def _backward(drawing: _Drawing, units: list[int]) -> None:
    """Backward from the last layer; each gathers the next while it computes."""
    flags = Flag.BACKWARD_PREFETCH
    pending: int | None = None
    for unit in reversed(units[1:]):
        at = drawing.host
        own = Flag.NONE if pending is None else flags
        op = pending
        if op is None:
            op = drawing.unshard(unit, unit, Phase.BACKWARD, Flag.NONE, at + US)
        drawing.copy_out(op, unit, Phase.BACKWARD, own, at + 25 * US)
        pending = None
        if unit > 1:
            pending = drawing.unshard(
                unit - 1, unit, Phase.BACKWARD, flags, at + 30 * US
            )
        drawing.hook("pre_backward", unit, Phase.BACKWARD, 60 * US)
        drawing.work(unit, Phase.BACKWARD)
        drawing.hook("post_backward_accumulate", unit, Phase.BACKWARD, US)
        drawing.host += 4 * US
        drawing.reduce(unit)
    drawing.hook("post_backward_accumulate", 0, Phase.BACKWARD, US)
    drawing.host += 4 * US
    drawing.reduce(0)
