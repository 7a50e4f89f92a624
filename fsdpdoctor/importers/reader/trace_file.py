"""What is kept of a trace file: one row per event that the analysis can use.

Rows are columns, never objects, and names are ids: a file of millions of events
becomes tens of megabytes. Python frames, flow arrows and counters are counted
and let go; so are CPU operators, but for those that communicate or that say
which pass autograd was in (the others keep three columns, in `Ops`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from fsdpdoctor.schema import NO_TIME, UNKNOWN, Table, column, is_any
from fsdpdoctor.storage.spill import blocks, let_go

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

RowIds = npt.NDArray[np.int32]
"""Row numbers: no file has two thousand million events."""


class Cat(IntEnum):
    """What an event is. Anything else in a trace is not kept."""

    KERNEL = 1
    MEMCPY = 2
    MEMSET = 3
    RUNTIME = 4  # a call of the device's runtime or driver
    ANNOTATION = 5  # record_function, on the host
    CPU_OP = 6
    CAPTURE = 7  # the profiler's own span: from its start to its end


CATEGORIES: dict[str, Cat] = {
    "kernel": Cat.KERNEL,
    "Kernel": Cat.KERNEL,  # torch 1.8 to 1.10
    "gpu_memcpy": Cat.MEMCPY,
    "Memcpy": Cat.MEMCPY,
    "gpu_memset": Cat.MEMSET,
    "Memset": Cat.MEMSET,
    "cuda_runtime": Cat.RUNTIME,
    "cuda_driver": Cat.RUNTIME,
    "hip_runtime": Cat.RUNTIME,
    "xpu_runtime": Cat.RUNTIME,
    "mtia_runtime": Cat.RUNTIME,
    "privateuse1_runtime": Cat.RUNTIME,
    "Runtime": Cat.RUNTIME,
    "user_annotation": Cat.ANNOTATION,
    "cpu_op": Cat.CPU_OP,
    "Operator": Cat.CPU_OP,
    "Trace": Cat.CAPTURE,
}
"""The `cat` of an event to what it is. Not here, on purpose: `cuda_sync`, whose
rows carry a stream and are no device work, and `gpu_user_annotation`, whose boxes
overlap and drift (pytorch/kineto#914): units come from the host's annotations.
"""

NO_DEVICE = frozenset(
    {
        *("python_function", "PythonFunction", "gpu_user_annotation"),
        *("cuda_sync", "xpu_sync", "cuda_event", "overhead", "external_correlation"),
        *("cpu_instant_event", "fwdbwd", "ac2g", "async_cpu_to_gpu", "async_gpu"),
        *("cuda_profiler_range", "collective_comm", "mtia_counters", "gpu_pm_counter"),
    }
)
"""Categories that are left out knowingly. A device's work is in none of them."""

COMM_OP_PREFIXES = ("c10d::", "nccl:", "gloo:", "record_param_comms", "hccl:", "ccl:")
"""CPU events that say which collective is being launched, beside the kernels."""

ANNOTATION_PREFIXES = (
    *("ProfilerStep", "Optimizer.step#", "enumerate(DataLoader)#", "FSDP::"),
)
"""Annotations that are known by their name: torch 1.8 and others write them as
operators."""

KEPT_OP_PREFIXES = (
    *COMM_OP_PREFIXES,
    *ANNOTATION_PREFIXES,
    *("fsdp::", "autograd::engine::evaluate_function"),
)
"""The CPU operators whose rows are kept."""

NO_STREAM_U32 = 2**32 - 1
"""What `"stream"` holds on events of no stream: -1, written as unsigned."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events(Table):
    """Rows of a trace, in the file's order. Ids are as the file has them."""

    cat: npt.NDArray[np.int8] = column("int8", 0)  # a Cat
    name: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # in TraceFile.names
    start_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)  # without the base time
    duration_ns: npt.NDArray[np.int64] = column("int64", 0)
    tid: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    external: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    correlation: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    stream: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    device: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    comm: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # in TraceFile.comms
    seq: npt.NDArray[np.int64] = column("int64", UNKNOWN)

    def ends(self, rows: npt.NDArray[np.integer]) -> Int64s:
        """When the events of some rows ended."""
        ended: Int64s = self.start_ns[rows] + self.duration_ns[rows]
        return ended


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ops(Table):
    """Every CPU operator and annotation that has an External id: where it ran."""

    external: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    start_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    tid: npt.NDArray[np.int64] = column("int64", UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryEvents(Table):
    """What the device allocators held, after each change."""

    time_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)  # without the base time
    device: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    allocated_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    reserved_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommArgs:
    """What an event's arguments say of a collective, each None where absent."""

    collective: str | None = None  # "_allgather_base", "allreduce"
    in_nelems: int | None = None
    out_nelems: int | None = None
    dtype: str | None = None
    group: str | None = None  # "Process Group Name"
    description: str | None = None
    ranks: str | None = None  # "[0, 1]", as text; long lists are cut with "..."
    size: int | None = None
    dims: str | None = None  # JSON text of "Input Dims"
    types: str | None = None  # JSON text of "Input type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What reading a file was like."""

    events: int = 0  # of every kind
    repaired: int = 0  # damaged JSON that was read after a repair
    dropped: int = 0  # beyond repair, or without a time
    negative_durations: int = 0  # of `dropped`
    truncated_at: int | None = None  # bytes; the file ends inside an event
    damaged_at: int | None = None  # bytes; of the first event that needed repair

    def counts(self) -> dict[str, int]:
        """For `RankHeader.health`; offsets only where there is one."""
        found = {
            "events": self.events,
            "repaired": self.repaired,
            "dropped": self.dropped,
            "negative_durations": self.negative_durations,
        }
        if self.truncated_at is not None:
            found["truncated_at_byte"] = self.truncated_at
        if self.damaged_at is not None:
            found["damaged_at_byte"] = self.damaged_at
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceFile:
    """A trace file, read: what surrounds its events, and the rows worth keeping."""

    metadata: dict[str, object] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    comms: tuple[CommArgs, ...] = ()
    events: Events = field(default_factory=lambda: Events.build(0))
    ops: Ops = field(default_factory=lambda: Ops.build(0))
    memory: MemoryEvents = field(default_factory=lambda: MemoryEvents.build(0))
    pids: tuple[int, ...] = ()  # processes whose operators, else calls, are in it
    unread: Mapping[str, int] = field(default_factory=dict)  # complete events of each
    # category that is not in CATEGORIES
    health: Health = Health()

    @property
    def unread_device(self) -> Mapping[str, int]:
        """Of the categories that are not read, those that no writer is known to use
        for something else than a device's work.
        """
        return {
            cat: events for cat, events in self.unread.items() if cat not in NO_DEVICE
        }


def starts_with(names: Iterable[str], prefixes: tuple[str, ...]) -> list[bool]:
    """For each name, whether it begins with one of `prefixes`."""
    return [name.startswith(prefixes) for name in names]


def names_that(trace: TraceFile, test: Callable[[str], object]) -> Bools:
    """Which names of a trace pass a test, by id."""
    return np.array([bool(test(name)) for name in trace.names], dtype=np.bool_)


def rows_named(trace: TraceFile, cats: Collection[Cat], named: Bools) -> RowIds:
    """Rows of events of some categories, of the names that a mask by id has."""
    events = trace.events
    found = [np.empty(0, dtype=np.int32)]
    for block in blocks(len(events)):
        at = np.flatnonzero(is_any(events.cat[block], *cats))
        at = at[named[events.name[block][at]]]
        found.append((block.start + at).astype(np.int32))
    let_go(events)
    return np.concatenate(found)
