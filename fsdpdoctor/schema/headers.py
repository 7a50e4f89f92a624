"""What a run, and each of its ranks, says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from fsdpdoctor.rank_end import RankEnd
from fsdpdoctor.schema.absent import UNKNOWN
from fsdpdoctor.schema.files import SCHEMA_VERSION
from fsdpdoctor.schema.memory import MemoryStep
from fsdpdoctor.schema.start import StartSpec
from fsdpdoctor.schema.units import GroupSpec, ModelSpec, ReplicaSpec, UnitSpec


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
    OTHER_COLLECTIVES = "other_collectives"  # those that FSDP2 did not issue, with
    # what they ran in; live also with their call sites
    STACKS = "stacks"  # samples of the training thread's stack outside all spans
    REPLICAS = "replicas"  # samples of what ranks may have to hold alike


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsSpec:
    """Settings that a running job was given, and the steps that ran under them."""

    words: str
    trial: bool  # False: kept
    # First and end, not included; UNKNOWN: to the last.
    steps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHeader:
    """What one rank says of itself. Rewritten whole when it learns more."""

    schema_version: int = SCHEMA_VERSION
    rank: int
    world_size: int
    run_id: str = ""  # its run's; empty: not said, as earlier versions did not
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
    replicas: tuple[ReplicaSpec, ...] = ()  # what others may have to hold alike
    start: StartSpec | None = None  # None: it was not seen from its beginning
    memory: MemoryStep | None = None  # None: no step's storages were counted
    settings: tuple[SettingsSpec, ...] = ()  # other than the script's own, in order
    environment: dict[str, str] = field(
        default_factory=dict
    )  # CUDA_*, NCCL_*, redacted
    ended: str = "running"  # "done", "exception: ...", "signal: ...", "detached: ..."
    end: RankEnd | None = None  # the same with where and when; None: no script of ours
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
