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

from fsdpdoctor.schema.absent import NO_TIME, UNKNOWN
from fsdpdoctor.schema.columns import (
    distinct,
    distinct_rows,
    median,
    numbered,
    one_of,
    percentiles,
)
from fsdpdoctor.schema.dtypes import ITEMSIZE, element_bytes, torch_name
from fsdpdoctor.schema.files import (
    HEARTBEAT,
    HEARTBEAT_BEFORE,
    HEARTBEAT_SLOTS,
    NOT_CAPTURED,
    SCHEMA_VERSION,
    STREAM_RANK,
    STREAM_RUN_ID,
    SYNTHETIC_KEY,
    TABLE_SINCE,
    VIEW_KEY,
    rank_stem,
)
from fsdpdoctor.schema.headers import Evidence, RankHeader, RunHeader, SettingsSpec
from fsdpdoctor.schema.hooks import Hook
from fsdpdoctor.schema.kinds import (
    COLLECTIVE_KINDS,
    COMMUNICATION_LANES,
    DEVICE_WORK,
    WAIT_OF,
    Activity,
    Flag,
    Kind,
    Lane,
    Phase,
    Within,
    is_any,
)
from fsdpdoctor.schema.memory import (
    BUCKETS,
    Bucket,
    MemoryMoment,
    MemoryShare,
    MemoryStep,
    UnitMemory,
)
from fsdpdoctor.schema.start import StartSpec
from fsdpdoctor.schema.step_record import (
    COUNTER_ALLOC_RETRIES,
    COUNTER_COMPILE_NS,
    COUNTER_DIRECT_METHODS,
    COUNTER_EXCEPTIONS,
    COUNTER_GATHERED,
    COUNTER_GRADIENTS_TAKEN,
    COUNTER_GRAPH_BREAKS,
    COUNTER_LEFT_OPEN,
    COUNTER_OOMS,
    COUNTER_PYTHON_OBJECTS,
    COUNTER_RECOMPILES,
    GRAPH_BREAK_REASON,
    RECOMPILE_REASON,
    StepRecord,
)
from fsdpdoctor.schema.tables import (
    CallSites,
    Counters,
    MemorySamples,
    Spans,
    StackSamples,
    StepTimes,
    Table,
    TimedTable,
    column,
)
from fsdpdoctor.schema.units import (
    ROOT,
    BlockSpec,
    GroupSpec,
    IdleParentSpec,
    ModelSpec,
    OptimizerSpec,
    ParamSpec,
    ReplicaKind,
    ReplicaSpec,
    UnitSpec,
)

__all__ = [
    "BUCKETS",
    "COLLECTIVE_KINDS",
    "COMMUNICATION_LANES",
    "COUNTER_ALLOC_RETRIES",
    "COUNTER_COMPILE_NS",
    "COUNTER_DIRECT_METHODS",
    "COUNTER_EXCEPTIONS",
    "COUNTER_GATHERED",
    "COUNTER_GRADIENTS_TAKEN",
    "COUNTER_GRAPH_BREAKS",
    "COUNTER_LEFT_OPEN",
    "COUNTER_OOMS",
    "COUNTER_PYTHON_OBJECTS",
    "COUNTER_RECOMPILES",
    "DEVICE_WORK",
    "GRAPH_BREAK_REASON",
    "HEARTBEAT",
    "HEARTBEAT_BEFORE",
    "HEARTBEAT_SLOTS",
    "ITEMSIZE",
    "NOT_CAPTURED",
    "NO_TIME",
    "RECOMPILE_REASON",
    "ROOT",
    "SCHEMA_VERSION",
    "STREAM_RANK",
    "STREAM_RUN_ID",
    "SYNTHETIC_KEY",
    "TABLE_SINCE",
    "UNKNOWN",
    "VIEW_KEY",
    "WAIT_OF",
    "Activity",
    "BlockSpec",
    "Bucket",
    "CallSites",
    "Counters",
    "Evidence",
    "Flag",
    "GroupSpec",
    "Hook",
    "IdleParentSpec",
    "Kind",
    "Lane",
    "MemoryMoment",
    "MemorySamples",
    "MemoryShare",
    "MemoryStep",
    "ModelSpec",
    "OptimizerSpec",
    "ParamSpec",
    "Phase",
    "RankHeader",
    "ReplicaKind",
    "ReplicaSpec",
    "RunHeader",
    "SettingsSpec",
    "Spans",
    "StackSamples",
    "StartSpec",
    "StepRecord",
    "StepTimes",
    "Table",
    "TimedTable",
    "UnitMemory",
    "UnitSpec",
    "Within",
    "column",
    "distinct",
    "distinct_rows",
    "element_bytes",
    "is_any",
    "median",
    "numbered",
    "one_of",
    "percentiles",
    "rank_stem",
    "torch_name",
]
