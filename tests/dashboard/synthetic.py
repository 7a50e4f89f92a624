"""Runs like a real FSDP2 training's, of any size, for the dashboard's tests.

One step is laid out span by span; the others are copies of it, stretched a
little. Host, copy-in, all-gather, wait, copy-out, compute, reshard,
reduce-scatter and windows stand to each other as in a recorded run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np

from fsdpdoctor.run import RankData, in_memory, save_run
from fsdpdoctor.schema import (
    ROOT,
    Evidence,
    GroupSpec,
    Kind,
    Lane,
    MemorySamples,
    Phase,
    RankHeader,
    RunHeader,
    Spans,
    StepRecord,
    UnitSpec,
)

US = 1_000
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How large a run to make."""

    ranks: int = 8
    layers: int = 32
    steps: int = 4
    kernels: int = 10  # per unit and phase
    gather_us: int = 620  # what an all-gather takes
    names: tuple[str, ...] = ()  # of the units; else model.layers.N

    @property
    def spans(self) -> int:
        """About how many spans it has."""
        return self.ranks * self.steps * self.layers * (2 * self.kernels + 21)


def shape_of(spans: int, ranks: int = 8) -> Shape:
    """A shape with about as many spans."""
    for layers, kernels in ((32, 10), (8, 4), (2, 0)):
        shape = Shape(ranks=ranks, layers=layers, kernels=kernels, steps=1)
        if shape.spans <= spans:
            break
    steps = max(1, round(spans / shape.spans))
    return Shape(ranks=ranks, layers=layers, kernels=kernels, steps=steps)


class _Draft:
    """Rows of `Spans`, as they come."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []

    def add(
        self,
        kind: Kind,
        lane: Lane,
        start: int,
        end: int,
        *,
        phase: Phase = Phase.OTHER,
        unit: int = -1,
        op: int = -1,
        issued: int | None = None,
        size: int = -1,
        group: int = -1,
        seq: int = -1,
    ) -> int:
        at = start if issued is None else issued
        self.rows.append(
            (kind, lane, phase, unit, op, start, end, at, size, group, seq)
        )
        return end


SIZE = 64 << 20
"""Bytes of each unit's collectives."""


class _Told(TypedDict):
    """What a unit's spans share."""

    phase: Phase
    unit: int
    op: int


class _Step:
    """A step in the making: when each lane is free, and what is drawn so far."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape, self.draft = shape, _Draft()
        self.rng = np.random.default_rng(seed)
        self.now = self.issue = 100 * US
        self.gather_free = self.reduce_free = self.op = 0

    def unit(self, phase: Phase, kind: Kind, unit: int, slow: float, work: int) -> None:
        """A unit's pass: gathered, waited for, computed, resharded, reduced."""
        told = _Told(phase=phase, unit=unit, op=self.op)
        gathered = self.gather(told, slow)
        self.draft.add(
            Kind.ALL_GATHER_WAIT,
            Lane.COMPUTE,
            self.now,
            max(self.now, gathered),
            issued=self.issue + 60 * US,
            **told,
        )
        start = max(self.now, gathered)
        usable = self.draft.add(
            Kind.COPY_OUT, Lane.COMPUTE, start, start + 30 * US, **told
        )
        self.compute(kind, told, usable, int(self.rng.normal(work, 30) * US))
        self.op += 1
        if phase == Phase.BACKWARD:
            self.reduce(unit)

    def gather(self, told: _Told, slow: float) -> int:
        """Issue, copy-in and all-gather; when it is done."""
        add = self.draft.add
        issued = add(Kind.UNSHARD, Lane.HOST, self.issue, self.issue + 60 * US, **told)
        begin = max(issued, self.gather_free)
        copied = add(
            Kind.COPY_IN,
            Lane.COPY_IN,
            begin,
            begin + 40 * US,
            issued=issued,
            size=SIZE,
            **told,
        )
        took = int(self.rng.normal(self.shape.gather_us, 40) * US * slow)
        self.gather_free = add(
            Kind.ALL_GATHER,
            Lane.ALL_GATHER,
            copied,
            copied + took,
            issued=issued,
            size=SIZE,
            group=0,
            seq=self.op,
            **told,
        )
        return self.gather_free

    def compute(self, kind: Kind, told: _Told, usable: int, busy: int) -> None:
        """Kernels, the pass around them, and the unshard window."""
        add, kernels = self.draft.add, self.shape.kernels
        phase, unit = told["phase"], told["unit"]
        for k in range(kernels):
            edge = usable + busy * k // kernels
            end = edge + busy // kernels - 5 * US
            add(Kind.KERNEL, Lane.COMPUTE, edge, end, phase=phase, unit=unit)
        self.issue = usable
        end = usable + busy
        self.now = add(kind, Lane.COMPUTE, usable, end, phase=phase, unit=unit)
        add(Kind.UNSHARDED, Lane.UNSHARDED, usable, end, size=SIZE, **told)
        add(
            Kind.RESHARD,
            Lane.HOST,
            end - 20 * US,
            end - 10 * US,
            phase=phase,
            unit=unit,
        )

    def reduce(self, unit: int) -> None:
        """Copy-in and reduce-scatter of a unit's gradients."""
        told = _Told(phase=Phase.BACKWARD, unit=unit, op=self.op)
        reduced = int(self.rng.normal(800, 50)) * US
        copied = self.now + 25 * US
        self.draft.add(Kind.REDUCE_COPY_IN, Lane.COMPUTE, self.now, copied, **told)
        self.reduce_free = self.draft.add(
            Kind.REDUCE_SCATTER,
            Lane.REDUCE_SCATTER,
            copied,
            copied + reduced,
            issued=copied - 20 * US,
            size=SIZE,
            group=0,
            seq=self.op,
            **told,
        )
        self.now = copied
        self.op += 1


def _step_template(shape: Shape, seed: int) -> tuple[_Draft, int]:
    """The spans of one step from time 0 on, and its length."""
    step = _Step(shape, seed)
    add, begin = step.draft.add, step.now
    units = list(range(1, shape.layers + 1))
    for place, unit in enumerate(units):
        slow = 4.0 if place == len(units) - 1 else 1.0
        step.unit(Phase.FORWARD, Kind.FORWARD, unit, slow, 700)
    add(Kind.FORWARD, Lane.COMPUTE, begin, step.now, phase=Phase.FORWARD, unit=0)
    step.issue = step.now
    for unit in units[::-1]:
        step.unit(Phase.BACKWARD, Kind.BACKWARD, unit, 1.0, 1400)
    now = add(
        Kind.REDUCE_SCATTER_WAIT,
        Lane.COMPUTE,
        step.now,
        step.reduce_free,
        phase=Phase.BACKWARD,
        unit=1,
        op=step.op - 1,
    )
    add(Kind.UNSHARDED, Lane.UNSHARDED, begin, now, unit=0, size=32 << 20)
    add(Kind.MICRO_BATCH, Lane.HOST, begin, now)
    add(Kind.SYNC, Lane.HOST, now, now + 200 * US)
    now = add(Kind.OPTIMIZER, Lane.COMPUTE, now, now + 2500 * US, phase=Phase.OPTIMIZER)
    return step.draft, now + 150 * US


def rank_data(shape: Shape, rank: int) -> RankData:
    """One rank's record."""
    draft, length = _step_template(shape, seed=0)
    columns = np.array(draft.rows, dtype=np.int64)
    rng = np.random.default_rng(1000 + rank)
    stretches = np.random.default_rng(7).normal(1.0, 0.01, shape.steps)
    names = (
        "kind",
        "lane",
        "phase",
        "unit",
        "op",
        "start_ns",
        "end_ns",
        "issued_ns",
        "bytes",
        "group",
        "seq",
    )
    ops = int(columns[:, 4].max()) + 1
    now, steps = 1_000_000_000, []
    collectives = np.flatnonzero(columns[:, 9] >= 0)
    between = np.random.default_rng(8).integers(0, 40, shape.steps) * US
    for step, stretch in enumerate(stretches.tolist()):
        table = columns.copy()
        times = slice(5, 8)
        table[:, times] = (table[:, times] * stretch).astype(np.int64) + now
        table[:, 4] = np.where(table[:, 4] >= 0, table[:, 4] + step * ops, -1)
        table[:, 10] = np.where(table[:, 10] >= 0, table[:, 10] + step * ops, -1)
        # All ranks of a collective finish together; each arrives when it does.
        late = rng.integers(0, 90 + 40 * (rank == 2), len(collectives)) * US
        table[collectives, 5] += late
        table[collectives, 5] = np.minimum(
            table[collectives, 5], table[collectives, 6] - 20 * US
        )
        end = now + int(length * stretch)
        spans = Spans.build(
            **dict(zip(names, table.T, strict=True)),
            micro_batch=0,
        )
        steps.append(_step_record(step, now, end, spans, rng))
        now = end + int(between[step])
    return RankData(header=_header(shape, rank), steps=tuple(steps))


def _step_record(
    step: int, start: int, end: int, spans: Spans, rng: np.random.Generator
) -> StepRecord:
    windows = np.flatnonzero(spans.kind == Kind.UNSHARDED)
    times = np.sort(np.concatenate((spans.start_ns[windows], spans.end_ns[windows])))
    live = (np.arange(len(times)) % 5 + 1) * (64 << 20)
    wave = np.interp(times, [start, (start + end) // 2, end], [6.0, 11.0, 6.0])
    allocated = (wave * GIB).astype(np.int64) + live
    memory = MemorySamples.build(
        time_ns=times,
        unit=np.arange(len(times)) % 8,
        phase=Phase.FORWARD,
        allocated_bytes=allocated,
        reserved_bytes=14 * GIB,
        peak_bytes=allocated + (int(rng.integers(1, 9)) << 20),
        unsharded_bytes=live,
    )
    return StepRecord(
        step=step,
        start_ns=start,
        end_ns=end,
        host_start_ns=start,
        host_end_ns=end,
        micro_batches=1,
        recorder_ns=20 * US,
        spans=spans,
        memory=memory,
    )


def _header(shape: Shape, rank: int) -> RankHeader:
    root = UnitSpec(fqn=ROOT, module_class="Transformer", is_root=True)
    layers = tuple(
        UnitSpec(
            fqn=shape.names[i] if shape.names else f"model.layers.{i}",
            module_class="Block",
            numel=32 << 20,
            unsharded_bytes=64 << 20,
            reshard_after_forward=True,
        )
        for i in range(shape.layers)
    )
    return RankHeader(
        rank=rank,
        world_size=shape.ranks,
        host="node0",
        device="cuda",
        device_name="synthetic",
        evidence=(
            Evidence.UNITS,
            Evidence.STEPS,
            Evidence.STALLS,
            Evidence.COLLECTIVES,
            Evidence.ISSUE_TIMES,
            Evidence.WINDOWS,
            Evidence.ALLOCATOR,
            Evidence.RANKS,
        ),
        units=(root, *layers),
        groups=(
            GroupSpec(
                name="shard",
                ranks=tuple(range(shape.ranks)),
                size=shape.ranks,
                backend="nccl",
                role="shard",
            ),
        ),
        ended="done",
    )


def write_run(folder: Path, shape: Shape) -> Path:
    """A run folder of that shape."""
    header = RunHeader(
        run_id=folder.name,
        source="simulated",
        world_size=shape.ranks,
        device="cuda",
        command=("train.py", "--layers", str(shape.layers)),
        torch="2.13.0",
        notes=("made by the dashboard's tests",),
    )
    ranks = [rank_data(shape, rank) for rank in range(shape.ranks)]
    save_run(in_memory(header, ranks), folder)
    return folder
