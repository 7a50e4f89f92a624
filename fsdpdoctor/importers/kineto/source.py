"""One rank's Kineto trace as a record: what every source of a run gives."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from fsdpdoctor.errors import InputError
from fsdpdoctor.importers.device_kind import device_kind, device_of_categories
from fsdpdoctor.importers.kineto.attribution import (
    Context,
    SpansWithHostTime,
    build_context,
    gather_dtypes,
    rows_that,
)
from fsdpdoctor.importers.kineto.cut_file import cut_short
from fsdpdoctor.importers.kineto.device_spans import device_spans
from fsdpdoctor.importers.kineto.host_collectives import host_collectives
from fsdpdoctor.importers.kineto.host_spans import host_spans
from fsdpdoctor.importers.kineto.launches import find_launches
from fsdpdoctor.importers.kineto.memory_samples import samples_of_steps
from fsdpdoctor.importers.kineto.partial_steps import SetAside, set_first_aside
from fsdpdoctor.importers.kineto.pass_spans import passes_on_device, passes_on_host
from fsdpdoctor.importers.kineto.quality import (
    DeviceHealth,
    Told,
    device_health,
    not_captured,
    warnings,
)
from fsdpdoctor.importers.kineto.steps import (
    StepWindow,
    cut_into_steps,
    launches_in,
    step_windows,
)
from fsdpdoctor.importers.kineto.unknown_kernels import unknown_kernels
from fsdpdoctor.importers.kineto.unshard_windows import (
    find_windows,
    windows_on_device,
    windows_on_host,
)
from fsdpdoctor.importers.reader.trace_cache import cached_scan
from fsdpdoctor.importers.reader.trace_file import Cat, TraceFile
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    NO_TIME,
    ROOT,
    SYNTHETIC_KEY,
    UNKNOWN,
    Evidence,
    Flag,
    Kind,
    MemorySamples,
    ModelSpec,
    RankHeader,
    Spans,
    Table,
    UnitSpec,
    distinct,
    one_of,
)
from fsdpdoctor.storage.spill import Shelf, blocks, let_go

DDP_PREFIX = "DistributedDataParallel."
FSDP1_PREFIX = "FullyShardedDataParallel."


@dataclass(frozen=True, slots=True, kw_only=True)
class KinetoSource:
    """A rank's trace file. Pickles: a worker process loads it."""

    path: Path
    rank: int
    world_size: int
    cache_folder: Path | None = None
    notes: tuple[str, ...] = ()  # how the rank was found, where that is doubtful

    @property
    def where(self) -> str:
        return str(self.path)

    def load(self) -> RankData:
        """Read and attribute the trace. Raises InputError."""
        return rank_data(self._attributed(), self.notes)

    def _attributed(self) -> Attributed:
        """The trace's events are let go when this returns."""
        trace = on_unix_clock(cached_scan(self.path, self.cache_folder))
        refuse_merged(self.path, trace)
        return attribute(trace, self.rank, self.world_size)


def on_unix_clock(trace: TraceFile) -> TraceFile:
    """A trace with its base time added: files of different origins then compare."""
    base = trace.metadata.get("baseTimeNanoseconds", 0)
    if not isinstance(base, int) or not 0 < base < 2**62:
        return trace
    return replace(
        trace,
        events=_later(trace.events, "start_ns", base),
        ops=_later(trace.ops, "start_ns", base),
        memory=_later(trace.memory, "time_ns", base),
    )


_TableOf = TypeVar("_TableOf", bound=Table)


def _later(table: _TableOf, name: str, by_ns: int) -> _TableOf:
    """A table with a column of times moved."""
    times = getattr(table, name)
    shelf = Shelf({name: table.columns()[name]})
    for block in blocks(len(table)):
        shelf.put([(name, times[block] + by_ns)])
        let_go(table)
    return replace(table, **shelf.take())


def refuse_merged(path: Path, trace: TraceFile) -> None:
    """Raise InputError for a file of several processes: their ids collide."""
    if len(trace.pids) < 2:
        return
    shown = ", ".join(map(str, trace.pids[:8]))
    raise InputError(
        f"{path} holds the calls of {len(trace.pids)} processes (pid {shown}): a "
        "merged trace, in which correlation ids of different ranks collide. Give each "
        "rank's own file instead"
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attributed:
    """What is left of a trace once its work is attributed: its events can go."""

    header: RankHeader
    parts: tuple[SpansWithHostTime, ...]
    steps: tuple[StepWindow, ...]
    launches: tuple[int, ...]  # the host's, in each step
    memory: tuple[MemorySamples, ...]  # of each step
    names: tuple[str, ...]
    on_device: bool
    measured: bool
    lost: frozenset[int]  # steps that the file does not hold whole


def attribute(trace: TraceFile, rank: int, world_size: int) -> Attributed:
    """Say of all that a trace holds what it was for."""
    context = build_context(trace)
    work = find_launches(trace)
    # A device whose events are of categories that are not read is a device all the
    # same: the host's calls do not say when its work ran.
    on_device = len(work) > 0 or bool(trace.unread_device)
    windows = find_windows(context)
    if on_device:
        lanes = device_spans(context, work)
        parts = (
            lanes,
            passes_on_device(context, lanes),
            windows_on_device(windows or [], lanes),
            host_spans(context),
        )
    else:
        lanes = host_collectives(context)
        parts = (
            lanes,
            passes_on_host(context),
            windows_on_host(windows or [], lanes),
            host_spans(context),
        )
    steps = tuple(step_windows(trace))
    # What the header is made of leaves out the kind that is nearly all rows.
    spans = Spans.concat(
        [rows_that(part.spans, lambda one: one.kind != Kind.KERNEL) for part in parts]
    )
    health = device_health(trace, work)
    cut = cut_short(trace, work, steps)
    told = Told(
        spans=spans,
        health=health,
        steps=steps,
        cut=cut,
        unknown=unknown_kernels(lanes.spans, context.names.all) if on_device else None,
        world_size=world_size,
    )
    return Attributed(
        header=_header(
            context,
            spans,
            health,
            rank=rank,
            world_size=world_size,
            warnings=tuple(warnings(context, told)),
            has_kernels=len(spans) < sum(len(part.spans) for part in parts)
            and not cut.all_lost,
        ),
        parts=parts,
        steps=steps,
        launches=launches_in(trace, steps),
        memory=tuple(samples_of_steps(trace.memory, _device_id(trace), steps)),
        names=context.names.all,
        on_device=on_device,
        measured=SYNTHETIC_KEY not in trace.metadata,
        lost=cut.steps,
    )


def rank_data(attributed: Attributed, notes: tuple[str, ...] = ()) -> RankData:
    """Cut what was attributed into steps. `notes` come before the warnings."""
    header = attributed.header
    cut = cut_into_steps(
        attributed.parts, attributed.steps, on_device=attributed.on_device
    )
    steps = tuple(
        replace(step, memory=memory, complete=at not in attributed.lost)
        for at, (step, memory) in enumerate(
            zip(cut.steps, attributed.memory, strict=True)
        )
    )
    # What was written of a record has no capture that could have begun late, and a
    # file that is cut lacks kernels for another reason.
    if attributed.measured and not attributed.lost:
        judged = set_first_aside(steps, attributed.launches)
    else:
        judged = SetAside(steps=steps)
    if judged.reason is not None:
        notes = (*notes, judged.reason)
    return RankData(
        header=replace(header, warnings=(*notes, *header.warnings)),
        steps=judged.steps,
        outside=_joined(judged.aside, cut.outside),
        names=attributed.names,
    )


def _joined(aside: Spans, outside: Spans) -> Spans:
    return Spans.concat([aside, outside]) if len(aside) else outside


def _header(
    context: Context,
    spans: Spans,
    health: DeviceHealth,
    *,
    rank: int,
    world_size: int,
    warnings: tuple[str, ...],
    has_kernels: bool,
) -> RankHeader:
    trace = context.trace
    on_device = bool((spans.stream != UNKNOWN).any()) or health.kernels > 0
    device = _device(trace)
    host = trace.metadata.get("host_name")
    return RankHeader(
        rank=rank,
        world_size=world_size,
        host=host if isinstance(host, str) else None,
        pid=trace.pids[0] if trace.pids else UNKNOWN,
        device=_device_word(trace) if on_device or trace.unread_device else "cpu",
        device_name=device[0],
        device_bytes=device[1],
        clock="cuda" if on_device else "host",
        evidence=_evidence(
            context, spans, on_device=on_device, has_kernels=has_kernels
        ),
        units=_units(context, spans),
        groups=tuple(context.groups.specs),
        model=_model(trace, context),
        ended="done",
        warnings=warnings,
        health={
            **trace.health.counts(),
            **health.counts(),
            **not_captured(context, spans, world_size),
        },
    )


def _device_word(trace: TraceFile) -> str:
    """What the device of some work is: CUDA's unless the file says another's."""
    said = device_kind(trace.metadata)
    if said != "cpu":
        return said
    return device_of_categories(trace.unread_device) if trace.unread_device else "cuda"


def _device_id(trace: TraceFile) -> int:
    """The device that ran most kernels, or UNKNOWN."""
    events = trace.events
    ran: Counter[int] = Counter()
    for block in blocks(len(events)):
        used = events.device[block][events.cat[block] == Cat.KERNEL]
        ids, times = np.unique(used, return_counts=True)
        ran.update(dict(zip(ids.tolist(), times.tolist(), strict=True)))
    return max(sorted(ran), key=ran.__getitem__, default=UNKNOWN)


def _device(trace: TraceFile) -> tuple[str | None, int]:
    """The name and memory of the device that ran the kernels."""
    devices = trace.metadata.get("deviceProperties")
    if not isinstance(devices, list):
        return None, UNKNOWN
    mine = _device_id(trace)
    if mine == UNKNOWN and len(devices) == 1 and isinstance(devices[0], dict):
        only = devices[0].get("id")
        mine = only if isinstance(only, int) else UNKNOWN
    for device in devices:
        if isinstance(device, dict) and device.get("id") == mine:
            name, memory = device.get("name"), device.get("totalGlobalMem")
            return (
                name if isinstance(name, str) else None,
                memory if isinstance(memory, int) else UNKNOWN,
            )
    return None, UNKNOWN


def _evidence(
    context: Context, spans: Spans, *, on_device: bool, has_kernels: bool
) -> tuple[Evidence, ...]:
    kinds = set(distinct(spans.kind).tolist())
    comm = one_of(
        spans.kind,
        (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.COLLECTIVE),
    )
    issued = comm & (spans.issued_ns != NO_TIME)
    events = context.trace.events
    shown = {
        Evidence.UNITS: context.has_labels,
        Evidence.UNITS_BY_ORDER: bool((spans.flags & Flag.BY_ORDER != 0).any()),
        Evidence.STEPS: bool(step_windows(context.trace)),
        Evidence.MICRO_BATCHES: Kind.MICRO_BATCH in kinds,
        Evidence.STALLS: not on_device and Kind.ALL_GATHER_WAIT in kinds,
        Evidence.COLLECTIVES: bool(comm.any()),
        Evidence.OTHER_COLLECTIVES: bool(comm.any()),
        Evidence.KERNELS: on_device and has_kernels,
        Evidence.ISSUE_TIMES: bool(comm.any() and issued.sum() == comm.sum()),
        Evidence.HOST: context.has_labels,
        Evidence.SYNC_CALLS: bool((events.cat == Cat.RUNTIME).any()),
        Evidence.INPUT: Kind.INPUT in kinds,
        Evidence.OPTIMIZER: Kind.OPTIMIZER in kinds,
        Evidence.WINDOWS: Kind.UNSHARDED in kinds,
    }
    return tuple(evidence for evidence, is_shown in shown.items() if is_shown)


def _units(context: Context, spans: Spans) -> tuple[UnitSpec, ...]:
    dtypes = gather_dtypes(context)
    return tuple(
        _unit(fqn, spans.rows(spans.unit == index), dtypes.get(index))
        for index, fqn in enumerate(context.units)
    )


def _unit(fqn: str, mine: Spans, gather_dtype: str | None) -> UnitSpec:
    gathers = mine.rows(mine.kind == Kind.ALL_GATHER)
    reduces = mine.rows(mine.kind == Kind.ALL_REDUCE)
    passes = mine.rows(one_of(mine.kind, (Kind.FORWARD, Kind.BACKWARD)))
    again = bool((passes.flags & Flag.RECOMPUTE != 0).any())
    return UnitSpec(
        fqn=fqn,
        module_class="",  # a trace does not say
        is_root=fqn.split(" [pg=")[0] == ROOT,
        unsharded_bytes=int(gathers.bytes.max()) if len(gathers) else UNKNOWN,
        gather_dtype=gather_dtype,
        shard_group=int(gathers.group[0]) if len(gathers) else UNKNOWN,
        replicate_group=int(reduces.group[0]) if len(reduces) else UNKNOWN,
        checkpointed=True if again else None,
    )


def _model(trace: TraceFile, context: Context) -> ModelSpec | None:
    """What wraps the model, where annotations say so."""
    if context.has_labels:
        return ModelSpec(wrapper="fsdp2")
    for wrapper, prefix in (("fsdp1", FSDP1_PREFIX), ("ddp", DDP_PREFIX)):
        if any(name.startswith(prefix) for name in trace.names):
            return ModelSpec(wrapper=wrapper)
    return None
