"""draw(): a rank's record from a picture, for tests. Public.

One line per lane, one character per millisecond, a digit is the unit:

    all_gather  0.111111......
    wait        0..........1..
    forward     .0000000000.11

Lanes of collectives give each stretch its own `op`; `wait` and `rs_wait` stretches
belong to the latest collective of their unit that started by then; an `issue` mark
is when the host issued the unit's next collective. `.` is idle. The digit of a `gc`
is its generation, that of a `micro_batch` its number for all that starts in it, that of
an `other` collective and the wait for it the `Call` that issues it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from fsdpdoctor.analysis.measures import Measures, reduce
from fsdpdoctor.analysis.rank_measures import measure_rank
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    Activity,
    CallSites,
    Counters,
    Evidence,
    Flag,
    GroupSpec,
    Kind,
    Lane,
    ModelSpec,
    Phase,
    RankHeader,
    RunHeader,
    Spans,
    StackSamples,
    StepRecord,
    UnitSpec,
    Within,
    is_any,
)
from fsdpdoctor.schema.string_table import StringTable

RECORDED = tuple(
    set(Evidence)
    - {Evidence.KERNELS, Evidence.RANKS, Evidence.ALLOCATOR, Evidence.UNITS_BY_ORDER}
    - {Evidence.OTHER_COLLECTIVES, Evidence.STACKS}
)
"""The evidence of a recorded CPU run."""

TRACED = (
    Evidence.UNITS,
    Evidence.STEPS,
    Evidence.COLLECTIVES,
    Evidence.KERNELS,
    Evidence.ISSUE_TIMES,
)
"""The evidence of a trace with FSDP2 labels."""

_ROWS: dict[str, tuple[Kind, Lane, Phase]] = {
    "all_gather": (Kind.ALL_GATHER, Lane.ALL_GATHER, Phase.FORWARD),
    "backward_all_gather": (Kind.ALL_GATHER, Lane.ALL_GATHER, Phase.BACKWARD),
    "reduce_scatter": (Kind.REDUCE_SCATTER, Lane.REDUCE_SCATTER, Phase.BACKWARD),
    "all_reduce": (Kind.ALL_REDUCE, Lane.ALL_REDUCE, Phase.BACKWARD),
    "wait": (Kind.ALL_GATHER_WAIT, Lane.COMPUTE, Phase.FORWARD),
    "backward_wait": (Kind.ALL_GATHER_WAIT, Lane.COMPUTE, Phase.BACKWARD),
    "rs_wait": (Kind.REDUCE_SCATTER_WAIT, Lane.COMPUTE, Phase.BACKWARD),
    "ar_wait": (Kind.ALL_REDUCE_WAIT, Lane.COMPUTE, Phase.BACKWARD),
    "copy_in": (Kind.COPY_IN, Lane.COPY_IN, Phase.FORWARD),
    "copy_out": (Kind.COPY_OUT, Lane.COMPUTE, Phase.FORWARD),
    "forward": (Kind.FORWARD, Lane.COMPUTE, Phase.FORWARD),
    "recompute": (Kind.FORWARD, Lane.COMPUTE, Phase.FORWARD),
    "backward": (Kind.BACKWARD, Lane.COMPUTE, Phase.BACKWARD),
    "kernel": (Kind.KERNEL, Lane.COMPUTE, Phase.FORWARD),
    "unsharded": (Kind.UNSHARDED, Lane.UNSHARDED, Phase.FORWARD),
    "optimizer": (Kind.OPTIMIZER, Lane.COMPUTE, Phase.OPTIMIZER),
    "clip": (Kind.CLIP, Lane.COMPUTE, Phase.OPTIMIZER),
    "hook": (Kind.HOOK, Lane.HOST, Phase.FORWARD),
    "input": (Kind.INPUT, Lane.HOST, Phase.OTHER),
    "gc": (Kind.GC, Lane.HOST, Phase.OTHER),
    "sync": (Kind.SYNC, Lane.HOST, Phase.FORWARD),
    "checkpoint": (Kind.CHECKPOINT_SAVE, Lane.HOST, Phase.OTHER),
    "micro_batch": (Kind.MICRO_BATCH, Lane.HOST, Phase.OTHER),
    "memcpy": (Kind.MEMCPY, Lane.COPY, Phase.OTHER),
    "recompute_all_gather": (Kind.ALL_GATHER, Lane.ALL_GATHER, Phase.FORWARD),
    "stale": (Kind.UNSHARDED, Lane.UNSHARDED, Phase.FORWARD),
    "eval_forward": (Kind.FORWARD, Lane.COMPUTE, Phase.FORWARD),
    "eval_all_gather": (Kind.ALL_GATHER, Lane.ALL_GATHER, Phase.FORWARD),
    "eval_unsharded": (Kind.UNSHARDED, Lane.UNSHARDED, Phase.FORWARD),
    "eval_wait": (Kind.ALL_GATHER_WAIT, Lane.COMPUTE, Phase.FORWARD),
    "root_forward": (Kind.ROOT_FORWARD, Lane.COMPUTE, Phase.FORWARD),
    "eval_root_forward": (Kind.ROOT_FORWARD, Lane.COMPUTE, Phase.FORWARD),
    "dropped_all_gather": (Kind.ALL_GATHER, Lane.ALL_GATHER, Phase.BACKWARD),
    "outer_sync": (Kind.SYNC, Lane.HOST, Phase.OTHER),
    "other": (Kind.COLLECTIVE, Lane.OTHER_COMM, Phase.OTHER),
    "other_wait": (Kind.COLLECTIVE_WAIT, Lane.COMPUTE, Phase.OTHER),
}

_FLAGS = {
    "recompute": Flag.RECOMPUTE,
    "recompute_all_gather": Flag.RECOMPUTE,
    "stale": Flag.NEVER_USED,
    "eval_forward": Flag.NO_GRAD,
    "eval_all_gather": Flag.NO_GRAD,
    "eval_unsharded": Flag.NO_GRAD,
    "eval_wait": Flag.NO_GRAD,
    "eval_root_forward": Flag.NO_GRAD,
    "dropped_all_gather": Flag.NEVER_USED | Flag.BACKWARD_PREFETCH,
}

_WAITED = {
    Kind.ALL_GATHER_WAIT: Kind.ALL_GATHER,
    Kind.COPY_OUT: Kind.ALL_GATHER,
    Kind.REDUCE_SCATTER_WAIT: Kind.REDUCE_SCATTER,
    Kind.ALL_REDUCE_WAIT: Kind.ALL_REDUCE,
    Kind.COLLECTIVE_WAIT: Kind.COLLECTIVE,
}

GROUP = GroupSpec(name="shard", ranks=(0, 1), size=2, backend="gloo", role="shard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Who issues the collectives of an `other` lane with its digit."""

    kind: str  # "all_reduce"
    site: str  # "train.py:43"
    via: str = ""
    within: Within = Within.SCRIPT
    phase: Phase = Phase.OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the training thread does at some character of the picture."""

    at: float
    activity: Activity
    site: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What surrounds a picture."""

    rank: int = 0
    world_size: int = 2
    steps: int = 6
    first_step: int = 3  # past the warm-up that measures leave out
    micro_batches: int = 1
    evidence: tuple[Evidence, ...] = RECORDED
    units: tuple[UnitSpec, ...] | None = None  # None: layers.0, layers.1, ...
    groups: tuple[GroupSpec, ...] = (GROUP,)
    model: ModelSpec | None = field(default_factory=lambda: ModelSpec(wrapper="fsdp2"))
    device: str = "cpu"
    clock: str = "host"
    bytes: int = 1 << 20  # of each collective
    scale_ns: int = MS  # of one character
    tokens: int = UNKNOWN  # of each step
    names: tuple[str, ...] = ()  # the first is that of every `sync`
    counters: dict[str, int] = field(default_factory=dict)  # of each step
    calls: tuple[Call, ...] = ()  # by the digits of `other` lanes
    samples: tuple[Sample, ...] = ()  # of each step
    header: dict[str, Any] = field(default_factory=dict)  # other RankHeader fields


def unit(fqn: str, **known: Any) -> UnitSpec:
    """A unit of a drawn run: 1 M float32 parameters, resharded after forward."""
    given: dict[str, Any] = {
        "module_class": "Block",
        "numel": 1 << 20,
        "trainable_numel": 1 << 20,
        "frozen_numel": 0,
        "param_bytes": 4 << 20,
        "unsharded_bytes": 4 << 20,
        "shard_bytes": 2 << 20,
        "padding_bytes": 0,
        "orig_dtype": "float32",
        "gather_dtype": "float32",
        "reshard_after_forward": True,
        "forward_prefetch": (),
        "backward_prefetch": (),
        "shard_group": 0,
    }
    return UnitSpec(fqn=fqn, **(given | known))


def draw(picture: str, drawing: Drawing | None = None, **changes: Any) -> RankData:
    """One rank whose every step looks like the picture.

    `changes` are fields of `Drawing`.
    """
    around = replace(drawing or Drawing(), **changes)
    lanes = _lanes(picture)
    length = max(len(text) for _, text in lanes)
    spans = _spans(lanes, around.scale_ns)
    count = 1 + max((int(u) for u in spans.unit if u != UNKNOWN), default=0)
    units = around.units
    if units is None:
        units = tuple(unit(f"layers.{at}") for at in range(count))
    width = length * around.scale_ns
    header = RankHeader(
        rank=around.rank,
        world_size=around.world_size,
        host="drawn",
        device=around.device,
        clock=around.clock,
        evidence=tuple(sorted(around.evidence)),
        units=units,
        groups=around.groups,
        model=around.model,
        ended="done",
        **around.header,
    )
    records = tuple(
        _step(spans, around, step, step * width, width)
        for step in range(around.first_step, around.first_step + around.steps)
    )
    return RankData(header=header, steps=records, names=_names(around).all)


def _names(around: Drawing) -> StringTable:
    """Names of a drawn rank; those that were given are the first."""
    names = StringTable()
    said = [
        *around.names,
        *around.counters,
        *(text for call in around.calls for text in (call.kind, call.site, call.via)),
        *(sample.site for sample in around.samples),
    ]
    for text in said:
        names.id(text)
    return names


def measured(*ranks: RankData, **run: Any) -> Measures:
    """Drawn ranks, measured together. `run` are fields of `RunHeader`."""
    first = ranks[0].header
    given: dict[str, Any] = {
        "run_id": "drawn",
        "source": "recorded",
        "world_size": first.world_size,
        "device": first.device,
        "torch": "2.13.0",
    }
    return reduce(RunHeader(**(given | run)), [measure_rank(data) for data in ranks])


def _lanes(picture: str) -> list[tuple[str, str]]:
    rows = [line.split() for line in picture.strip().splitlines() if line.strip()]
    for row in rows:
        if len(row) != 2 or (row[0] not in _ROWS and row[0] != "issue"):
            raise ValueError(f"not a lane of a picture: {' '.join(row)}")
    return [(row[0], row[1]) for row in rows]


def _stretches(text: str) -> list[tuple[str, int, int]]:
    """(character, start, end) of each run that is not idle."""
    result: list[tuple[str, int, int]] = []
    at = 0
    for character, run in groupby(text):
        width = len(list(run))
        if character != ".":
            result.append((character, at, at + width))
        at += width
    return result


def _spans(lanes: Sequence[tuple[str, str]], scale_ns: int) -> Spans:
    issues = [
        (int(mark), start * scale_ns)
        for name, text in lanes
        if name == "issue"
        for mark, start, _ in _stretches(text)
    ]
    rows: list[dict[str, int]] = []
    for name, text in lanes:
        if name == "issue":
            continue
        for mark, start, end in _stretches(text):
            row = _row(name, mark, start * scale_ns, end * scale_ns)
            if row["kind"] in _WAITED.values():
                row |= {"op": len(rows), "bytes": 1 << 20, "group": 0}
                before = [
                    t for u, t in issues if u == row["unit"] and t <= row["start_ns"]
                ]
                row["issued_ns"] = max(before, default=row["start_ns"])
            rows.append(row)
    _join(rows)
    absent = {"op": UNKNOWN, "bytes": UNKNOWN, "group": UNKNOWN, "seq": UNKNOWN}
    absent |= {"issued_ns": NO_TIME, "name": UNKNOWN, "value": UNKNOWN}
    given = ("kind", "lane", "phase", "flags", "unit", "micro_batch")
    names = (*given, "start_ns", "end_ns", *absent)
    return Spans.build(
        len(rows),
        **{
            name: [row.get(name, absent.get(name, 0)) for row in rows] for name in names
        },
    )


def _row(name: str, mark: str, start_ns: int, end_ns: int) -> dict[str, int]:
    """What a stretch of a lane is; its mark is a unit's, but for some kinds."""
    kind, lane, phase = _ROWS[name]
    at = int(mark) if mark.isdigit() else UNKNOWN
    row: dict[str, int] = {
        "kind": kind,
        "lane": lane,
        "phase": phase,
        "flags": _FLAGS.get(name, Flag.NONE),
        "unit": at,
        "start_ns": start_ns,
        "end_ns": end_ns,
    }
    if kind == Kind.GC:
        row |= {"unit": UNKNOWN, "value": at}
    if kind == Kind.MICRO_BATCH:
        row |= {"unit": UNKNOWN, "micro_batch": at}
    if kind == Kind.SYNC:
        row |= {"unit": UNKNOWN, "name": 0}
    return row


def _join(rows: Sequence[dict[str, int]]) -> None:
    """Number the collectives, join each wait to its own, and tell micro-batches."""
    collectives = [row for row in rows if "op" in row]
    for seq, row in enumerate(sorted(collectives, key=lambda r: r["start_ns"])):
        row["seq"] = seq
    for row in rows:
        waited = _WAITED.get(Kind(row["kind"]))
        owners = [
            c
            for c in collectives
            if c["kind"] == waited
            and c["unit"] == row["unit"]
            and c["start_ns"] <= row["end_ns"]
        ]
        if owners:
            row["op"] = max(owners, key=lambda c: c["start_ns"])["op"]
    for row in rows:
        around = (
            other["micro_batch"]
            for other in rows
            if other["kind"] == Kind.MICRO_BATCH
            and other["start_ns"] <= row["start_ns"] < other["end_ns"]
        )
        row["micro_batch"] = max(around, default=0)


def _step(
    spans: Spans, around: Drawing, step: int, shift_ns: int, width_ns: int
) -> StepRecord:
    names = _names(around)
    columns = {name: getattr(spans, name).copy() for name in Spans.columns()}
    other = is_any(spans.kind, Kind.COLLECTIVE, Kind.COLLECTIVE_WAIT)
    calls = [around.calls[digit] for digit in spans.unit[other].tolist()]
    for name, values in (
        ("unit", [UNKNOWN for _ in calls]),
        ("name", [names.id(call.kind) for call in calls]),
        ("phase", [call.phase for call in calls]),
    ):
        columns[name][other] = values
    for name in ("start_ns", "end_ns"):
        columns[name] = columns[name] + shift_ns
    issued = spans.issued_ns
    columns["issued_ns"] = issued + shift_ns * (issued != NO_TIME)
    per_step = 1 + int(spans.seq.max()) if len(spans) else 0
    columns["seq"] = spans.seq + step * per_step * (spans.seq != UNKNOWN)
    columns["op"] = spans.op + step * len(spans) * (spans.op != UNKNOWN)
    columns["bytes"] = spans.bytes * 0 + around.bytes * (spans.op != UNKNOWN)
    return StepRecord(
        step=step,
        start_ns=shift_ns,
        end_ns=shift_ns + width_ns,
        host_start_ns=shift_ns,
        host_end_ns=shift_ns + width_ns,
        micro_batches=around.micro_batches,
        tokens=around.tokens,
        spans=Spans(**columns),
        call_sites=CallSites.build(
            len(calls),
            op=columns["op"][other],
            within=[call.within for call in calls],
            site=[names.id(call.site) for call in calls],
            via=[names.id(call.via) for call in calls],
        ),
        stack_samples=StackSamples.build(
            len(around.samples),
            time_ns=[
                shift_ns + round(sample.at * around.scale_ns)
                for sample in around.samples
            ],
            activity=[sample.activity for sample in around.samples],
            site=[names.id(sample.site) for sample in around.samples],
        ),
        counters=Counters.build(
            len(around.counters),
            name=[names.id(name) for name in around.counters],
            time_ns=shift_ns,
            value=list(around.counters.values()),
        ),
    )
