"""Report: all that is said of a run, and its JSON.

The fields are the JSON contract: names, order and meaning stand until
`REPORT_VERSION` rises. None (null) is what the source cannot know; 0 was measured.

Times are whole nanoseconds. A time "per step" is the mean over the judged steps of
all ranks, so that parts add up. Counts are per micro-batch and unit. Bytes of a
collective are those of its large side: a gather's output, a reduce-scatter's input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from fsdpdoctor.errors import InputError, NewerFormatError
from fsdpdoctor.finding import Advice, Location, NotJudged
from fsdpdoctor.report.memory import MemoryRow
from fsdpdoctor.report.model_rows import ModelRow, NoGradRow
from fsdpdoctor.report.start import StartRow
from fsdpdoctor.storage.json_text import json_text
from fsdpdoctor.untrusted.headers import short_word

REPORT_VERSION = 1
"""Of the JSON. It rises when a field changes its meaning or goes."""


def _without_bar(name: str) -> str:
    """A word of Python is no name of a field there, but is one in JSON."""
    return name.rstrip("_")


SeverityName = Literal["critical", "warning", "info"]
ConfidenceName = Literal["high", "medium", "low"]


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was run, and how."""

    source: str
    world_size: int
    device: str
    torch: str | None
    steps: tuple[int, int] | None  # first and last judged one
    run_id: str
    ranks: int  # of the job, how many left a record
    hosts: int | None
    device_name: str | None
    python: str | None
    nccl: str | None
    fsdpdoctor: str | None  # that recorded or imported it
    command: tuple[str, ...]
    started_unix_ns: int | None
    every: int
    wrapper: str | None  # "fsdp2", "fsdp1", "ddp", "none"
    model_class: str | None
    numel: int | None  # of the whole model
    micro_batches: float | None  # per step
    tokens: float | None  # per step, of one rank
    samples: float | None
    configuration: Mapping[str, object]  # what a fair comparison needs to be equal
    applied: tuple[str, ...]
    notes: tuple[str, ...]


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long a judged step took."""

    median: int | None
    p95: int | None
    mean: int | None


class ByCause(msgspec.Struct, frozen=True, kw_only=True):
    """Exposed time by what it waited for; see `stall_causes`."""

    host_late: int | None  # None: it is not known when collectives were issued
    queued: int | None
    straggler: int | None  # None: ranks could not be matched
    wire: int | None  # None: the same
    tail: int | None
    wire_or_straggler: int | None = None  # both, where they cannot be told apart


class Exposed(msgspec.Struct, frozen=True, kw_only=True):
    """Time per step in which compute stood still for a collective."""

    total: int | None
    all_gather: int | None
    reduce_scatter: int | None
    all_reduce: int | None
    by_cause: ByCause
    by_kind_and_cause: Mapping[str, ByCause]


class OverlapShare(msgspec.Struct, frozen=True, kw_only=True):
    """Part of each kind's time that ran while compute did."""

    all_gather: float | None
    reduce_scatter: float | None
    all_reduce: float | None
    all: float | None


class CaptureOverlap(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of a whole capture, steps or not, all ranks together.

    Kernels only; memcpy and memset are not compute.
    """

    communication_ns: int
    overlapped_ns: int  # of it, while a compute kernel ran
    exposed_ns: int


class PhaseCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Per micro-batch, by the phase that needs it."""

    forward: float | None
    backward: float | None


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds per step."""

    forward: int | None
    backward: int | None


class KindTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds per step by the collective's kind."""

    all_gather: int | None
    reduce_scatter: int | None
    all_reduce: int | None


class UnitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `fully_shard` and the calls after it set, as it acts."""

    reshard_after_forward: bool | int | None
    param_dtype: str | None  # None: the stored one
    reduce_dtype: str | None
    stored_dtype: str | None
    offload: str | None
    mesh: str | None
    shard_size: int | None
    forward_prefetch: tuple[str, ...] | None  # None: not known
    backward_prefetch: tuple[str, ...] | None
    # None: not known, or not the same in all micro-batches
    reshard_after_backward: bool | None = None
    unshard_in_backward: bool | None = None
    unshard_async_op: bool | None = None
    requires_gradient_sync: bool | None = None
    requires_all_reduce: bool | None = None
    reduce_scatter_max_input_buffers: int | None = None
    separate_reduce_scatter_group: bool | None = None
    checkpointed: bool | None = None  # its forward ran again in backward
    compiled: str | None = None  # "inside" it, or "around" it; None: not known, or not


class UnitRow(msgspec.Struct, frozen=True, kw_only=True):
    """One FSDP unit. Times are own time, per step."""

    unit: str
    all_gathers: PhaseCounts
    all_gathers_per_step: PhaseCounts  # known where micro-batches are not
    expected_all_gathers: PhaseCounts
    reduce_scatters: float | None
    all_reduces: float | None
    all_gather_bytes: int | None  # of one
    reduce_scatter_bytes: int | None
    exposed_ns: PhaseTimes
    exposed_ns_by_kind: KindTimes
    forward_ns: int | None  # compute of its own, children and stalls left out
    backward_ns: int | None
    recompute_ns: int | None
    peak_bytes: int | None  # most allocated, or held in the memory step, while it ran
    unsharded_ns: int | None  # inside its unshard windows
    module_class: str
    numel: int | None
    settings: UnitSettings
    model: int = 0  # in `models`
    exposed_ns_by_cause: ByCause | None = None  # None: stalls were not measured
    activation_bytes: int | None = None  # its own, that its forward leaves behind


class CollectiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """All collectives of one group, kind and size.

    Bandwidths are decimal gigabytes per second. `median_ns` holds the wait for the
    last rank; `median_wire_ns` does not, and is None where ranks were not matched.
    """

    group: str | None
    kind: str
    bytes: int | None
    count: int  # in the judged steps, of all ranks
    median_ns: int | None  # None: their ends were not seen
    algbw_gbps: float | None  # bytes / median_ns
    busbw_gbps: float | None
    role: str | None
    group_size: int | None
    median_wire_ns: int | None
    wire_busbw_gbps: float | None


InName = Literal["script", "unit", "optimizer", "clip", "loader"]


class OtherCollectiveRow(
    msgspec.Struct, frozen=True, kw_only=True, rename=_without_bar
):
    """Collectives that FSDP2 did not issue, of one call site, kind and group."""

    where: str | None  # "train.py:43"; None: the source does not say
    kind: str
    group: str | None
    count_per_step: float  # mean over ranks
    bytes: int | None  # of one, the mean
    phase: str
    in_: InName  # "in" in JSON: what it ran in
    ns_per_step: int
    exposed_ns_per_step: int | None
    called: str | None  # what was called there: "full_tensor"
    ranks: tuple[int, ...]  # that called it


class ScriptRow(msgspec.Struct, frozen=True, kw_only=True):
    """Time outside all spans, by the script's line: the budget's `script`."""

    where: str  # "train.py:43"
    until: str | None  # it lies between the two lines; None: samples hit the one
    activity: str  # "user", "input", "logging", "sleep", ...; "edge": between two
    ns_per_step: int

    @property
    def until_line(self) -> str | None:
        """`until`, without the file where it is the same: "78"."""
        if self.until is None:
            return None
        file, _, line = self.until.rpartition(":")
        return line if self.where.startswith(f"{file}:") else self.until


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank beside the others."""

    rank: int
    overlap_share: float | None
    exposed_ns_per_step: int | None
    wait_ns_per_step: int | None  # in collectives, for the last rank to arrive
    last_arrivals: int | None  # collectives of the judged steps it was last to
    clock_offset_ns: int | None
    clock_residual_ns: int | None
    wait_caused_ns_per_step: int | None  # to all the others together
    step_ns: int | None  # median
    host: str | None


class PartOf(msgspec.Struct, frozen=True, kw_only=True):
    """The finding whose cost holds another's, which is not counted again."""

    code: str
    index: int  # in the report's findings


class FindingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A `Finding`, in JSON's words."""

    code: str
    name: str
    severity: SeverityName
    confidence: ConfidenceName
    units: tuple[str, ...]
    phase: str | None
    ranks: tuple[int, ...]
    cost_ns_per_step: int | None
    cost_bytes: int | None
    summary: str
    evidence: Mapping[str, object]
    advice: tuple[Advice, ...]
    places: tuple[Location, ...]
    part_of: PartOf | None = None  # None: its cost is its own


class StoppedRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that did not end its run, and the last that is known of it."""

    rank: int
    ended: str  # "running" where nothing could be written any more
    step: int | None = None
    micro_batch: int | None = None
    unit: str | None = None
    phase: str | None = None
    doing: str | None = None  # "all-gather"
    group: str | None = None
    seq: int | None = None  # of the collective within its group
    alive: bool | None = None  # whether its process lives; None: not known


class Truncated(msgspec.Struct, frozen=True, kw_only=True):
    """A rank whose record breaks off."""

    rank: int
    reason: str


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How far the figures can be trusted."""

    events: int | None
    repaired: int | None
    dropped: int | None
    warnings: tuple[str, ...]
    missing_ranks: tuple[int, ...]
    truncated: tuple[Truncated, ...]
    stopped: tuple[StoppedRank, ...]
    judged_steps: tuple[int, ...]
    warm_up_steps: tuple[int, ...]  # recorded and left out of every figure
    outlier_steps: tuple[int, ...]
    incomplete_steps: tuple[int, ...]
    clock_residual_ns: int | None  # largest of all ranks
    unsplit_collectives: int  # spread of arrivals below the clocks' residual
    replay_error: float | None = None  # of predictions' replay, as a signed share of
    # the step; None: not replayed
    predictions_withheld: str | None = None  # why advice has no predicted gains


class RecorderCost(msgspec.Struct, frozen=True, kw_only=True):
    """What recording cost the run."""

    overhead_share: float | None  # of the step time, unrecorded steps included
    steps_recorded: int
    steps_ran: int = 0  # of one rank: recorded ones, and those that were timed alone
    ns_per_recorded_step: int | None


class BestChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change that the simulator backs most."""

    text: str
    code: str | None
    apply: Mapping[str, object] | None  # a plan, for `run --apply`
    predicted_gain_ns: int  # per step
    gain_range_ns: tuple[int, int]
    memory_cost_bytes: int | None  # per rank; None: not known


class MostToGain(msgspec.Struct, frozen=True, kw_only=True):
    """Advice that no simulation backs, of a finding that costs more than the best
    change wins.
    """

    code: str  # of the finding
    text: str
    up_to_ns: int  # per step: what the finding costs


VerdictKind = Literal[
    "ended",
    "fault",
    "exposed",
    "host",
    "input",
    "pause",
    "optimizer",
    "other_collectives",
    "unexplained",
    "nothing",
]
"""What costs most: the run's end, a critical fault (a wrong result, no memory), or
what the step's time was lost to."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What costs most, in one sentence, and what to do about it."""

    kind: VerdictKind
    text: str
    cost_ns_per_step: int | None = None  # None: no step was judged
    code: str | None = None  # of the finding that says more
    most_to_gain: MostToGain | None = None  # None: the best change gives as much
    best_change: BestChange | None = None  # None: no change is backed
    floor_ns: int | None = None  # the mean step without anything that is only lost


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A run's diagnosis: the one value that every front end takes."""

    schema_version: int = REPORT_VERSION
    run: RunFacts
    verdict: Verdict = Verdict(kind="nothing", text="Nothing was judged")
    step_time_ns: StepTime
    exposed_ns_per_step: Exposed
    overlap_share: OverlapShare
    capture: CaptureOverlap | None = None  # None: the source has no kernels
    budget_ns_per_step: Mapping[str, int] = msgspec.field(
        default_factory=dict
    )  # `step_budget`
    models: tuple[ModelRow, ...] = ()
    units: tuple[UnitRow, ...] = ()
    memory: MemoryRow | None = None  # None: no step's storages were counted
    start: StartRow | None = None  # None: no rank was seen from its beginning
    no_grad: tuple[NoGradRow, ...] = ()
    unexplained_ns_per_step: int | None = None  # of the step; None: no whole step
    collectives: tuple[CollectiveRow, ...] = ()
    other_collectives: tuple[OtherCollectiveRow, ...] = ()
    script: tuple[ScriptRow, ...] = ()
    ranks: tuple[RankRow, ...] = ()
    findings: tuple[FindingRow, ...] = ()  # faults, then by what can be gained
    not_judged: tuple[NotJudged, ...] = ()
    health: Health
    recorder: RecorderCost


def encode(report: Report) -> str:
    """The report as JSON text."""
    return json_text(report)


class _Version(msgspec.Struct):
    schema_version: int


def decode(content: str | bytes) -> Report:
    """A report from its JSON. Raises InputError."""
    try:
        version = msgspec.json.decode(content, type=_Version).schema_version
        if version > REPORT_VERSION:
            raise NewerFormatError(
                f"the report has format {version}, this fsdpdoctor reads up to "
                f"{REPORT_VERSION}: upgrade with pip install -U fsdpdoctor"
            )
        return msgspec.json.decode(content, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        said = short_word(str(error))
        raise InputError(f"not a report of fsdpdoctor: {said}") from None
