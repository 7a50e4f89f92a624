"""A trace as its rank would have been recorded: what labels and kernels let one infer.

[Note: What a trace leaves out]
A profiler's trace has FSDP2's labels, kernels and collectives, and no settings. What a
unit was told shows in what it did: it was resharded if backward gathered it again, on
the group that did; a gather under another unit's prefetch label was in that unit's
list; its bytes are its collectives'. Dtypes and single parameters do not show, and a
plan that needs them is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.timeline import of_kinds
from fsdpdoctor.errors import InputError
from fsdpdoctor.intervals import Int64s, Intervals, union
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    ITEMSIZE,
    NO_TIME,
    UNKNOWN,
    Evidence,
    Flag,
    Hook,
    Kind,
    Lane,
    ParamSpec,
    Phase,
    RankHeader,
    Spans,
    StepRecord,
    UnitSpec,
    distinct,
    one_of,
)

POST_BACKWARD = Hook.POST_BACKWARD
"""What the recorder calls the hook, of which FSDP2 labels three parts."""

FIRST_PART = Hook.POST_BACKWARD_ACCUMULATE
CALLBACK = Hook.ROOT_POST_BACKWARD_CALLBACK

FSDP2 = (
    *(Kind.HOOK, Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE),
    *(Kind.COPY_IN, Kind.ALL_GATHER, Kind.COPY_OUT),
    *(Kind.REDUCE_COPY_IN, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE),
)
"""What belongs to a micro-batch, even if the end of its backward did it."""


def is_trace(data: RankData) -> bool:
    """Whether settings have to be inferred: a recorded run says them itself."""
    return Evidence.CONFIG not in data.evidence


def as_recorded(data: RankData, steps: Collection[int]) -> RankData:
    """A trace with some of its steps, in the words of the recorder.

    See [Note: What a trace leaves out]. Raises InputError where a unit's bytes do
    not show.
    """
    names = (*data.names, POST_BACKWARD)
    kept = [record for record in data.steps if record.step in steps]
    records = tuple(_recorded(data, record) for record in kept)
    header = data.header
    if records:
        spans = Spans.concat([record.spans for record in records])
        header = replace(header, units=_units(header, spans, records[-1].spans))
    return replace(data, header=header, steps=records, names=names)


def working(spans: Spans) -> Intervals:
    """When a trace's compute lane was at work: kernels, and gaps within one pass.

    Between two kernels of one pass the lane waits for launches; a segment's compute
    includes that, as it does in a recorded run. Gaps at the edge of a pass are what
    hooks cost the host, and are not compute.
    """
    rows = spans.rows((spans.kind == Kind.KERNEL) & (spans.lane == Lane.COMPUTE))
    rows = rows.rows(np.argsort(rows.start_ns, kind="stable"))
    if not len(rows):
        return union(rows.start_ns, rows.end_ns)
    again = rows.flags & Flag.RECOMPUTE
    same = np.ones(len(rows) - 1, dtype=bool)
    for column in (rows.unit, rows.phase, rows.micro_batch, again):
        same &= column[1:] == column[:-1]
    reach = np.maximum.accumulate(rows.end_ns)
    ends = reach.copy()
    ends[:-1][same] = np.maximum(reach[:-1], rows.start_ns[1:])[same]
    return union(rows.start_ns, ends)


# -- spans


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hooks:
    """The rows of a step's hooks, and what they are called."""

    at: npt.NDArray[np.intp]
    names: npt.NDArray[np.str_]

    def called(self, *names: str) -> npt.NDArray[np.intp]:
        return self.at[np.isin(self.names, names)]


def _hooks(data: RankData, spans: Spans) -> _Hooks:
    at = np.flatnonzero(spans.kind == Kind.HOOK)
    names = [data.name(int(name)) or "" for name in spans.name[at]]
    return _Hooks(at=at, names=np.array(names, dtype=np.str_))


def _recorded(data: RankData, record: StepRecord) -> StepRecord:
    spans = record.spans
    hooks = _hooks(data, spans)
    spans = replace(spans, micro_batch=_micro_batches(spans))
    spans = replace(
        spans,
        lane=_lanes(spans),
        flags=_flags(spans, hooks),
        end_ns=_hook_ends(spans, hooks),
        name=_hook_names(spans, hooks, len(data.names)),
    )
    spans = spans.rows(~_kept(spans))
    missing = _missing_backwards(data, spans)
    return replace(record, spans=Spans.concat([spans, missing]))


def _micro_batches(spans: Spans) -> npt.NDArray[np.int32]:
    """What the callback at the end of a backward did belongs to that micro-batch."""
    batches = of_kinds(spans, Kind.MICRO_BATCH)
    batches = batches.rows(np.argsort(batches.start_ns, kind="stable"))
    result = spans.micro_batch.copy()
    if not len(batches):
        return result
    time = np.where(spans.lane == Lane.HOST, spans.start_ns, spans.issued_ns)
    lost = (result == UNKNOWN) & one_of(spans.kind, FSDP2) & (time != NO_TIME)
    at = np.searchsorted(batches.start_ns, time, side="right") - 1
    lost &= at >= 0
    result[lost] = batches.micro_batch[at[lost]]
    return result


def compute_stream(spans: Spans) -> int:
    """The stream of most of the kernels' time."""
    kernels = of_kinds(spans, Kind.KERNEL)
    if not len(kernels):
        return UNKNOWN
    streams, at = np.unique(kernels.stream, return_inverse=True)
    return int(streams[int(np.argmax(np.bincount(at, kernels.duration_ns)))])


def _lanes(spans: Spans) -> npt.NDArray[np.int8]:
    """An asynchronous unshard copies in on the compute stream, and keeps it busy."""
    lane = spans.lane.copy()
    stream = compute_stream(spans)
    if stream != UNKNOWN:
        lane[(spans.kind == Kind.COPY_IN) & (spans.stream == stream)] = Lane.COMPUTE
    return lane


def _flags(spans: Spans, hooks: _Hooks) -> npt.NDArray[np.int16]:
    """A forward hook in backward is of a recomputation."""
    flags = spans.flags.copy()
    forward = hooks.called(Hook.PRE_FORWARD, Hook.POST_FORWARD)
    again = forward[spans.phase[forward] == Phase.BACKWARD]
    flags[again] |= Flag.RECOMPUTE
    return flags


def _hook_ends(spans: Spans, hooks: _Hooks) -> Int64s:
    """A post-backward hook lasts until it has resharded and reduced."""
    ends = spans.end_ns.copy()
    starts = np.sort(spans.start_ns[hooks.at])
    parts = one_of(spans.kind, (Kind.RESHARD, Kind.REDUCE))
    for hook in hooks.called(FIRST_PART).tolist():
        start = spans.start_ns[hook]
        after = np.searchsorted(starts, start, side="right")
        mine = parts & (spans.unit == spans.unit[hook]) & (spans.start_ns >= start)
        if after < len(starts):
            mine &= spans.start_ns < starts[after]
        if mine.any():
            ends[hook] = max(int(ends[hook]), int(spans.end_ns[mine].max()))
    return ends


def _hook_names(spans: Spans, hooks: _Hooks, name: int) -> npt.NDArray[np.int32]:
    names = spans.name.copy()
    names[hooks.called(FIRST_PART)] = name
    return names


def _kept(spans: Spans) -> npt.NDArray[np.bool_]:
    """Reshard labels of micro-batches after which the parameters stayed.

    FSDP2 writes its label either way. Whether it freed anything shows in the next
    forward: of the last micro-batch that is the next step's, which begins like this.
    """
    labels = (spans.kind == Kind.RESHARD) & (spans.phase == Phase.BACKWARD)
    gathers = (spans.kind == Kind.ALL_GATHER) & (spans.phase == Phase.FORWARD)
    gathered = distinct(spans.micro_batch[gathers])
    count = int(spans.micro_batch.max(initial=0)) + 1
    following = (spans.micro_batch + 1) % count
    kept: npt.NDArray[np.bool_] = labels & ~one_of(following, gathered)
    return kept


def _missing_backwards(data: RankData, spans: Spans) -> Spans:
    """Backwards that end only with the callback, as a root's does.

    Nothing marks their end on the compute lane but the last kernel before it.
    """
    hooks = _hooks(data, spans)
    work = (spans.kind == Kind.KERNEL) & (spans.lane == Lane.COMPUTE)
    work &= spans.issued_ns != NO_TIME
    rows: list[tuple[int, int, int, int]] = []
    known = of_kinds(spans, Kind.BACKWARD)
    seen = set(zip(known.unit.tolist(), known.micro_batch.tolist(), strict=True))
    for hook in hooks.called(Hook.PRE_BACKWARD).tolist():
        key = int(spans.unit[hook]), int(spans.micro_batch[hook])
        if key in seen:
            continue
        seen.add(key)
        ends = [
            int(spans.end_ns[at])
            for at in hooks.called(CALLBACK)
            if spans.micro_batch[at] == key[1]
        ]
        inside = work & (spans.issued_ns >= spans.end_ns[hook])
        inside &= (spans.micro_batch == key[1]) & (spans.phase == Phase.BACKWARD)
        if ends:
            inside &= spans.issued_ns < max(ends)
        if inside.any():
            first, last = spans.start_ns[inside].min(), spans.end_ns[inside].max()
            rows.append((*key, int(first), int(last)))
    table = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return Spans.build(
        len(rows),
        kind=Kind.BACKWARD,
        lane=Lane.COMPUTE,
        phase=Phase.BACKWARD,
        unit=table[0],
        micro_batch=table[1],
        start_ns=table[2],
        end_ns=table[3],
    )


# -- settings


def _units(header: RankHeader, spans: Spans, last: Spans) -> tuple[UnitSpec, ...]:
    """The units with what their collectives show."""
    gathers = of_kinds(spans, Kind.ALL_GATHER)
    never = sorted(set(range(len(header.units))) - set(gathers.unit.tolist()))
    silent = sorted(set(gathers.unit[gathers.bytes <= 0].tolist()) - {UNKNOWN})
    for units, what in ((never, "no all-gather"), (silent, "no size of all-gathers")):
        if units:
            raise InputError(
                f"this trace shows {what} of {header.units[units[0]].fqn}, so that its "
                "bytes are not known, which a replay needs: record it with "
                "`fsdpdoctor run`"
            )
    forward, backward = _prefetches(last)
    stream = compute_stream(spans)
    result: list[UnitSpec] = []
    for unit, spec in enumerate(header.units):
        mine = spans.rows(spans.unit == unit)
        copies = of_kinds(mine, Kind.COPY_IN)
        reduced = of_kinds(mine, Kind.REDUCE_SCATTER)
        others = (reduced.group != UNKNOWN) & (reduced.group != spec.shard_group)
        result.append(
            replace(
                _sized(spec, mine, header),
                reshard_after_forward=_reshards(
                    header, of_kinds(mine, Kind.ALL_GATHER)
                ),
                unshard_async_op=bool((copies.stream == stream).any())
                and stream != UNKNOWN,
                separate_reduce_scatter_group=bool(others.any()),
                forward_prefetch=forward.get(unit, ()),
                backward_prefetch=backward.get(unit, ()),
            )
        )
    return tuple(result)


def _sized(spec: UnitSpec, mine: Spans, header: RankHeader) -> UnitSpec:
    """As many elements as the collectives move, in dtypes that agree with them.

    Larger reductions than gathers are float32 after bfloat16: no policy in use makes
    them so but that. Smaller ones leave frozen parameters out. What is gathered in a
    narrow dtype is so by a policy or as stored: said as a policy, it is both.
    """
    gathered = int(of_kinds(mine, Kind.ALL_GATHER).bytes.max())
    reduced = int(of_kinds(mine, Kind.REDUCE_SCATTER).bytes.max(initial=0))
    mixed = reduced > gathered
    shards = max(_group_size(header, spec.shard_group), 1)
    narrow = mixed or gathered % (4 * shards) != 0
    said = spec.gather_dtype or ("bfloat16" if narrow else None)
    dtype = said or "float32"  # or half of it: the bytes fit both
    size = ITEMSIZE[dtype]
    numel = gathered // size
    trained = min(max(reduced, 0) // (4 if mixed else size), numel)
    parts = ((trained, True), (numel - trained, False))
    return replace(
        spec,
        gather_dtype=said,
        orig_dtype=dtype,
        param_dtype=dtype if size < ITEMSIZE["float32"] else None,
        reduce_dtype="float32" if mixed else None,
        params=tuple(
            ParamSpec(
                fqn=spec.fqn,
                shape=(count,),
                dtype=dtype,
                trainable=trainable,
                shard_dim=0,
                local_numel=count // shards,
                padded_local_numel=count // shards,
            )
            for count, trainable in parts
            if count
        ),
    )


def _group_size(header: RankHeader, group: int) -> int:
    if 0 <= group < len(header.groups):
        return header.groups[group].size
    return header.world_size


def _reshards(header: RankHeader, gathers: Spans) -> bool | int:
    """Whether backward gathered again; on a smaller group, over how many ranks."""
    forward = gathers.rows(gathers.phase == Phase.FORWARD)
    backward = gathers.rows(gathers.phase == Phase.BACKWARD)
    if not len(backward):
        return False
    over = [set(map(int, rows.group)) for rows in (forward, backward)]
    small = over[1] - over[0] - {UNKNOWN}
    if not small or not over[0]:
        return True
    size = _group_size(header, min(small))
    return size if size < _group_size(header, min(over[0])) else True


Lists = dict[int, tuple[int, ...]]


def _prefetches(spans: Spans) -> tuple[Lists, Lists]:
    """Each unit's forward and backward list, as far as it had an effect.

    Without a list FSDP2 prefetches backward on its own: the unit before, in the order
    of forwards. Where nothing else was prefetched, nobody made a list.
    """
    asked = of_kinds(spans, Kind.UNSHARD)
    asked = asked.rows((asked.flags & Flag.RECOMPUTE == 0) & (asked.by_unit >= 0))
    asked = asked.rows(np.argsort(asked.start_ns, kind="stable"))
    forward = _lists(
        asked.rows(
            (asked.flags & Flag.FORWARD_PREFETCH != 0) & (asked.phase == Phase.FORWARD)
        )
    )
    backward = _lists(asked.rows(asked.flags & Flag.BACKWARD_PREFETCH != 0))
    before = _before(spans)
    explicit = any(
        len(targets) > 1 or targets[0] != before.get(unit, targets[0])
        for unit, targets in backward.items()
    )
    return forward, backward if explicit else {}


def _lists(asked: Spans) -> Lists:
    """By unit, what its hooks had gathered, in any one micro-batch."""
    seen: dict[int, list[int]] = defaultdict(list)
    for by_unit, unit in zip(asked.by_unit.tolist(), asked.unit.tolist(), strict=True):
        if unit not in seen[by_unit]:
            seen[by_unit].append(unit)
    return {by_unit: tuple(units) for by_unit, units in seen.items()}


def _before(spans: Spans) -> dict[int, int]:
    """The unit whose forward ended before a unit's own did."""
    forwards = of_kinds(spans, Kind.FORWARD)
    forwards = forwards.rows(
        (forwards.micro_batch == 0) & (forwards.flags & Flag.RECOMPUTE == 0)
    )
    order = forwards.unit[np.argsort(forwards.end_ns, kind="stable")].tolist()
    return dict(zip(order[1:], order[:-1], strict=True))
