"""What a run record says: the words, the headers and the tables.

Standard library and numpy only: the recorder carries this module into other
people's training jobs, and a laptop without torch reads with it.

[Note: A run on disk]
A run is a folder. `run.json` is a `RunHeader`. Each rank R adds
`rank0000R.json`, a `RankHeader`; `rank0000R.arrows`, an Arrow IPC stream with
one record batch (of one row) per recorded step, which holds that step's
`StepRecord`: scalars, the tables below as lists of structs, and the names that
the step used first; and `rank0000R.beat`, a ring of the rank's last events
(see `HEARTBEAT`) that outlives a SIGKILL. No rank waits for another, and what
is on disk up to the last whole batch can always be read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum, IntFlag, StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

SCHEMA_VERSION = 1
"""Of the files of a run. Readers refuse a larger one, and fill nothing in."""

UNKNOWN = -1
"""What an id or a size holds where the source did not say."""

NO_TIME = np.iinfo(np.int64).min
"""What a time holds where the source did not say. Times may be negative."""

SYNTHETIC_KEY = "fsdpdoctor_synthetic"
"""The key in a trace's head that says it was not measured, and what it was made of."""

VIEW_KEY = "fsdpdoctor_view"
"""The key in the head of a trace that was exported to be looked at: no profiler's form,
and not read back."""

ROOT = "<root>"
"""The name of a root unit, whose module FQN is empty."""


class Lane(IntEnum):
    """Where a span ran."""

    HOST = 0
    COMPUTE = 1  # the stream that runs forward and backward; on CPU the thread
    COPY_IN = 2  # the all-gather copy-in stream
    ALL_GATHER = 3
    REDUCE_SCATTER = 4
    ALL_REDUCE = 5
    COPY = 6  # memcpy and memset outside every unit
    OTHER_COMM = 7  # collectives that are not FSDP2's: tensor, pipeline, expert
    UNSHARDED = 8  # not work: a unit's unshard window


class Phase(IntEnum):
    """What a span was for. An all-gather belongs to the phase that needs it."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


class Kind(IntEnum):
    """What a span did, in FSDP2's and the profiler's words."""

    # Lane.COMPUTE
    FORWARD = 1  # a unit's forward, children included
    BACKWARD = 2  # a unit's backward, from its pre- to its post-backward
    ALL_GATHER_WAIT = 3  # compute stood still until the unit's all-gather was done
    COPY_OUT = 4
    REDUCE_COPY_IN = 5  # gradients into the reduce-scatter input
    REDUCE_SCATTER_WAIT = (
        6  # stood still for a reduce-scatter; unit: the one waited for
    )
    ALL_REDUCE_WAIT = 7
    OPTIMIZER = 8
    CLIP = 9  # gradient clipping
    KERNEL = 10  # device work that is not communication; only traces know it
    # Lane.COPY_IN, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, OTHER_COMM
    COPY_IN = 20
    ALL_GATHER = 21
    REDUCE_SCATTER = 22
    ALL_REDUCE = 23
    COLLECTIVE = 24  # any other; `name` says which
    # Lane.COPY
    MEMCPY = 30
    MEMSET = 31
    # Lane.HOST
    HOOK = 40  # inside one of FSDP2's own hooks or calls, on the host
    UNSHARD = 41  # the host's call that issued an all-gather
    RESHARD = 42  # the host's call that freed a unit; phase: after which pass
    SYNC = 43  # a call that made the host wait for the device; `name`: file:line
    GC = 44  # a garbage collection; `value`: its generation
    INPUT = 45  # waiting in the data loader
    CHECKPOINT_SAVE = 46
    CHECKPOINT_LOAD = 47
    MICRO_BATCH = 48  # a root's forward start to the end of its backward
    LAUNCH = 49  # a device launch call; only traces know it
    REDUCE = 50  # the host's call that issued a reduce-scatter (and all-reduce)
    # Lane.UNSHARDED
    UNSHARDED = 60  # copy-out done to reshard; `bytes`: what the unit held


COMMUNICATION_LANES = (
    Lane.ALL_GATHER,
    Lane.REDUCE_SCATTER,
    Lane.ALL_REDUCE,
    Lane.OTHER_COMM,
)

DEVICE_WORK = (Kind.KERNEL, Kind.COPY_IN, Kind.COPY_OUT, Kind.REDUCE_COPY_IN)
"""What a trace shows of compute: every kernel that is no communication. Memcpy and
memset are not compute."""


def is_any(column: npt.NDArray[np.int8], *values: int) -> npt.NDArray[np.bool_]:
    """Where a column of kinds, lanes or phases has one of some values."""
    found = np.zeros(len(column), dtype=np.bool_)
    for value in values:  # as compared bytes: an index would be eight times as large
        found |= column == int(value)  # numpy looks an enum up for each comparison
    return found


class Flag(IntFlag):
    """What else is known of a span."""

    NONE = 0
    FORWARD_PREFETCH = 1  # issued by another unit's explicit forward prefetch
    BACKWARD_PREFETCH = 2  # issued by another unit's pre-backward
    RECOMPUTE = 4  # FORWARD state while autograd ran: activation recomputation
    NO_GRAD = 8  # a forward without gradients: evaluation, generation
    BLOCKING = 16  # the host itself stood still inside the collective call
    ASYNC_OP = 32  # the host got a work handle and waited on that
    NEVER_USED = 64  # unsharded, and freed without a forward or backward of its unit
    FIRST = 128  # first all-gather of its step: nothing to hide under
    MANUAL = 256  # unshard() called by the user's own code
    END_ESTIMATED = 512  # the collective's end is not seen: at latest the span's end
    ABORTED = 1024  # an exception ended it
    BY_ORDER = 2048  # its unit is told from sizes and order: no label said it


class Evidence(StrEnum):
    """What a source can show. A detector whose need is absent says so."""

    UNITS = "units"  # spans know their FSDP unit
    UNITS_BY_ORDER = "units_by_order"  # some, or all, only from sizes and order
    CONFIG = "config"  # the effective FSDP tree, meshes, policies, environment
    PREFETCH = "prefetch"  # configured prefetch lists
    STEPS = "steps"
    MICRO_BATCHES = "micro_batches"
    STALLS = "stalls"  # compute-lane waits, measured
    COLLECTIVES = "collectives"  # collectives' own start and end
    KERNELS = "kernels"  # every kernel of the compute lane
    ISSUE_TIMES = "issue_times"  # when the host issued each collective
    HOST = "host"  # FSDP2's hooks on the host
    SYNC_CALLS = "sync_calls"
    GC = "gc"
    INPUT = "input"  # data loader waits
    OPTIMIZER = "optimizer"  # optimizer and clip spans
    OPTIMIZER_CONFIG = "optimizer_config"
    CHECKPOINT = "checkpoint"
    WINDOWS = "windows"  # unshard windows
    ALLOCATOR = "allocator"  # device allocator statistics
    RANKS = "ranks"  # more than one rank, matched
    COMPILE = "compile"  # graph breaks and recompiles


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Parallel numpy columns of one length. A table takes over its arrays and
    freezes them: selecting rows makes a new table, nothing edits one.
    """

    def __post_init__(self) -> None:
        length = -1
        for name, dtype in self.columns().items():
            column = np.asarray(getattr(self, name), dtype=dtype)
            if column.ndim != 1 or length not in (-1, len(column)):
                raise ValueError(
                    f"{type(self).__name__}.{name} has shape {column.shape}, "
                    f"expected ({'N' if length < 0 else length},)"
                )
            length = len(column)
            column = column.view()
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    @classmethod
    @cache  # tables are made by the thousand, a few for every step
    def columns(cls) -> Mapping[str, np.dtype[np.generic]]:
        """Column names with their dtypes, in the order of the files."""
        return MappingProxyType(
            {f.name: np.dtype(f.metadata["dtype"]) for f in fields(cls)}
        )

    @classmethod
    def build(cls, length: int | None = None, **given: npt.ArrayLike) -> Self:
        """A table from some columns; the others hold what "not said" looks like.

        `length` is needed only where every given column is a scalar.
        """
        arrays = {name: np.asarray(value) for name, value in given.items()}
        if length is None:
            length = max((len(a) for a in arrays.values() if a.ndim), default=0)
        columns: dict[str, npt.NDArray[np.generic]] = {}
        for f in fields(cls):
            dtype = np.dtype(f.metadata["dtype"])
            value = arrays.pop(f.name, np.asarray(f.metadata["absent"]))
            if value.ndim:
                columns[f.name] = np.broadcast_to(value, (length,)).astype(dtype)
            else:
                columns[f.name] = np.full(length, value, dtype)
        if arrays:
            raise ValueError(f"{cls.__name__} has no column {', '.join(arrays)}")
        return cls(**columns)

    @classmethod
    def concat(cls, parts: list[Self]) -> Self:
        """The rows of several tables, in their order."""
        if not parts:
            return cls.build(0)
        return cls(
            **{
                name: np.concatenate([getattr(part, name) for part in parts])
                for name in cls.columns()
            }
        )

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def items(self) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
        """The columns with their names."""
        return ((name, getattr(self, name)) for name in self.columns())

    def rows(
        self, which: npt.NDArray[np.bool_] | npt.NDArray[np.integer] | slice
    ) -> Self:
        """The rows that a mask, an index array or a slice names."""
        # Made past `__post_init__`: what it checks holds for rows of a checked table,
        # and a step's measures select rows fifty times.
        chosen = object.__new__(type(self))
        for name in self.columns():
            column = getattr(self, name)[which]
            column.flags.writeable = False
            object.__setattr__(chosen, name, column)
        return chosen


def column(dtype: str, absent: int) -> Any:
    """A table's column: its dtype and what it holds where the source is silent."""
    return field(metadata={"dtype": dtype, "absent": absent})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans(Table):
    """What a rank did, one row per span. Times are ns on that rank's clock."""

    kind: npt.NDArray[np.int8] = column("int8", 0)  # a Kind
    lane: npt.NDArray[np.int8] = column("int8", 0)  # a Lane
    phase: npt.NDArray[np.int8] = column("int8", 0)  # a Phase
    flags: npt.NDArray[np.int16] = column("int16", 0)  # Flag bits
    micro_batch: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # within the step
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # index in RankHeader.units
    by_unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # whose hook issued it
    op: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # joins the spans of one
    # unshard (issue, copy-in, all-gather, wait, copy-out, window) or one reduction
    start_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    end_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    issued_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)  # on the host
    bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # of the large side:
    # a gather's output, a reduce-scatter's input, an all-reduce's tensor
    group: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # in RankHeader.groups
    seq: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # number within the group
    stream: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    name: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # index in the rank's names
    value: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # by kind, see Kind

    @property
    def duration_ns(self) -> npt.NDArray[np.int64]:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemorySamples(Table):
    """Memory at unit boundaries, one row per sample."""

    time_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    unit: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    phase: npt.NDArray[np.int8] = column("int8", 0)
    allocated_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    reserved_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    peak_bytes: npt.NDArray[np.int64] = column(
        "int64", UNKNOWN
    )  # since the last sample
    unsharded_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # live(t)
    rss_bytes: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # of the process


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counters(Table):
    """Named whole numbers at a time: allocator retries, graph breaks, tokens."""

    name: npt.NDArray[np.int32] = column("int32", UNKNOWN)
    time_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    value: npt.NDArray[np.int64] = column("int64", UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimes(Table):
    """Steps that were timed and not recorded, one row per step."""

    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    start_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    end_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRecord:
    """One recorded optimizer step of one rank."""

    step: int  # counted from 0 over the whole run
    start_ns: int  # on the clock of the spans: device time where there is one
    end_ns: int
    host_start_ns: int
    host_end_ns: int
    micro_batches: int  # UNKNOWN where no root forward was seen
    tokens: int = UNKNOWN
    samples: int = UNKNOWN
    recorder_ns: int = 0  # what recording this step cost the host
    complete: bool = True  # False: the run ended inside it
    spans: Spans = field(default_factory=lambda: Spans.build(0))
    memory: MemorySamples = field(default_factory=lambda: MemorySamples.build(0))
    counters: Counters = field(default_factory=lambda: Counters.build(0))
    unrecorded: StepTimes = field(default_factory=lambda: StepTimes.build(0))
    # the steps since the last recorded one

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


# Counters that more than one module names.
COUNTER_ALLOC_RETRIES = "allocator.retries"
COUNTER_OOMS = "allocator.ooms"
COUNTER_GRAPH_BREAKS = "compile.graph_breaks"
COUNTER_RECOMPILES = "compile.recompiles"
COUNTER_PYTHON_OBJECTS = "python.objects"
COUNTER_EXCEPTIONS = "forward.exceptions"
COUNTER_DIRECT_METHODS = "hooks.bypassed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamSpec:
    """One parameter of a unit, as this rank holds it."""

    fqn: str
    shape: tuple[int, ...]
    dtype: str  # without "torch.": "float32"
    trainable: bool
    shard_dim: int
    local_numel: int  # true elements of this rank's shard
    padded_local_numel: int  # the same with padding


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSpec:
    """One FSDP communication unit: the parameters one `fully_shard` call gathers
    together (`FSDPParamGroup`).
    """

    fqn: str  # ROOT, "layers.0", "norm, output"; "layers.0 [pg=4]" with several groups
    module_class: str  # class before fully_shard renamed it
    tree: int = 0  # index of the root whose tree it is in
    is_root: bool = False
    numel: int = UNKNOWN
    trainable_numel: int = UNKNOWN
    frozen_numel: int = UNKNOWN
    param_bytes: int = UNKNOWN  # unsharded, in the stored dtype
    unsharded_bytes: int = (
        UNKNOWN  # what a gather brings, in the gathered dtype, padded
    )
    shard_bytes: int = UNKNOWN  # this rank's part, stored dtype, padded
    padding_bytes: int = UNKNOWN  # of unsharded_bytes
    orig_dtype: str | None = None
    param_dtype: str | None = None  # MixedPrecisionPolicy's, None: stored dtype
    reduce_dtype: str | None = None
    gather_dtype: str | None = None  # of the collective; "uint8": mixed
    reshard_after_forward: bool | int | None = None  # as it acts, not as it was asked
    reshard_after_backward: bool | None = None
    unshard_in_backward: bool | None = None
    unshard_async_op: bool | None = None
    requires_gradient_sync: bool | None = None
    requires_all_reduce: bool | None = None
    reduce_scatter_max_input_buffers: int | None = None
    separate_reduce_scatter_group: bool | None = None
    offload: str | None = None  # None: on the device; "cpu", "cpu-pinned"
    forward_prefetch: tuple[int, ...] | None = None  # units, None: not known
    backward_prefetch: tuple[int, ...] | None = None
    shard_group: int = UNKNOWN  # in RankHeader.groups
    replicate_group: int = UNKNOWN  # HSDP
    post_forward_group: int = UNKNOWN  # integer reshard_after_forward
    mesh: str | None = None  # "(replicate=2, shard=4)"
    parent_meshes: tuple[str, ...] = ()  # meshes this mesh was sliced from
    checkpointed: bool | None = None  # its forward was recomputed in backward
    compiled: str | None = None  # "inside": compiled module within; "around"
    params: tuple[ParamSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """One process group."""

    name: str
    ranks: tuple[int, ...]  # global; empty where not known
    size: int
    backend: str | None = None  # "nccl", "gloo", "rccl", "fake", ...
    role: str | None = None  # "shard", "replicate", "post_forward", "world", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpec:
    """A run of sibling modules of one class, as in a ModuleList."""

    container: str  # FQN
    module_class: str
    count: int
    units: int  # how many of them are FSDP units, or hold one per block
    numel: int  # of one block


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """One optimizer as it was at its first step."""

    optimizer_class: str
    params: int  # tensors
    dtensors: int  # of them, DTensors
    stale: int  # of them, not (or no longer) a parameter of the model
    without_grad: int  # of them, without a gradient at the first step
    foreach: bool | None = None
    fused: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What wraps the model, beside the units."""

    wrapper: str  # "fsdp2", "fsdp1", "ddp", "none"
    model_class: str | None = None
    numel: int = UNKNOWN  # whole model, unsharded
    unmanaged_fqns: tuple[str, ...] = ()  # parameters outside every unit; first 50
    unmanaged_params: int = 0
    unmanaged_numel: int = 0
    unmanaged_bytes: int = 0
    unmanaged_trainable: int = 0  # of unmanaged_params
    ignored_params: int = 0  # of unmanaged_params, left out with ignored_params=
    blocks: tuple[BlockSpec, ...] = ()
    tied: tuple[tuple[str, ...], ...] = ()  # FQNs that share one parameter
    checkpoint: str | None = None  # "reentrant", "non_reentrant", None: none seen
    autocast_dtype: str | None = None
    optimizers: tuple[OptimizerSpec, ...] = ()
    forward_order: tuple[int, ...] = ()  # units, as they first ran


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHeader:
    """What one rank says of itself. Rewritten whole when it learns more."""

    schema_version: int = SCHEMA_VERSION
    rank: int
    world_size: int
    local_rank: int = UNKNOWN
    local_world_size: int = UNKNOWN
    host: str | None = None
    pid: int = UNKNOWN
    device: str = "cpu"  # device type: "cpu", "cuda"
    device_name: str | None = None
    device_bytes: int = UNKNOWN  # total memory of the device
    clock: str = "host"  # "host": perf_counter_ns; "cuda": device time on that clock
    unix_minus_clock_ns: int = 0  # add to a time of this rank for Unix time
    evidence: tuple[Evidence, ...] = ()
    units: tuple[UnitSpec, ...] = ()
    groups: tuple[GroupSpec, ...] = ()
    model: ModelSpec | None = None
    environment: dict[str, str] = field(
        default_factory=dict
    )  # CUDA_*, NCCL_*, redacted
    ended: str = "running"  # "done", "exception: ...", "signal: ...", "detached: ..."
    warnings: tuple[str, ...] = ()  # what the recorder, or importer, could not do
    health: dict[str, int] = field(
        default_factory=dict
    )  # events read, repaired, dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """What was run. Written once per folder, by the first rank that has it."""

    schema_version: int = SCHEMA_VERSION
    run_id: str  # the same in every folder of one run
    source: str  # "recorded", "kineto", "rehearsal", "simulated", ...
    world_size: int
    device: str = "cpu"
    command: tuple[str, ...] = ()  # redacted
    started_unix_ns: int = 0
    fsdpdoctor: str = ""
    torch: str | None = None
    python: str | None = None
    nccl: str | None = None
    every: int = 1  # one step in this many was recorded
    available: tuple[str, ...] = ()  # FSDPModule methods of the torch that ran
    applied: tuple[str, ...] = ()  # what a plan changed, in words
    notes: tuple[str, ...] = ()  # "losses are meaningless: rehearsal at world size 64"


# [Note: The heartbeat] A file of HEARTBEAT_SLOTS fixed records, mapped into memory
# and written round robin, so that what a rank did last is on disk even after
# SIGKILL. Slot: count (from 1, 0: never written), step, micro_batch, unit, kind,
# phase, seq, group, time_ns.
HEARTBEAT = struct.Struct("<qqiihhqiq")
HEARTBEAT_SLOTS = 64


def rank_stem(rank: int) -> str:
    """The name, without suffix, of a rank's files."""
    return f"rank{rank:05d}"
