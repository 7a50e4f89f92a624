"""Where a recorded step's time went, by segment of the model: what calibration needs.

[Note: Partition of a step]
Hooks, copies and stalls are FSDP2's. What is left of the step lies inside some
module's forward or backward, or outside all: before the first forward, between a
forward and its backward, between micro-batches, after the last backward. Inside, it
is the innermost module's, and of that module's segments the one after the last child
that ran.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fsdpdoctor.analysis.no_grad import model_name
from fsdpdoctor.analysis.timeline import Timeline, of_kinds
from fsdpdoctor.analysis.unit_times import innermost
from fsdpdoctor.errors import InputError
from fsdpdoctor.intervals import Intervals, complement, intersect, single, union
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import UNKNOWN, Evidence, Flag, Kind, Spans
from fsdpdoctor.simulate.calibration.trace_settings import working

VIRTUAL_ROOT = -2
"""Stands for a root whose parameters are all in other units: no unit of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How units lie inside each other; children in the order of their forwards."""

    root: int  # a unit, or VIRTUAL_ROOT
    children: dict[int, tuple[int, ...]]
    states: dict[int, tuple[int, ...]]  # several param groups of one module

    def walk(self, unit: int) -> Iterator[int]:
        """A unit and those inside it."""
        yield unit
        for child in self.children.get(unit, ()):
            yield from self.walk(child)


class Call(NamedTuple):
    """One forward or backward of a unit."""

    unit: int
    backward: bool
    recompute: bool
    start_ns: int
    end_ns: int


class ModuleGap(NamedTuple):
    """A stretch of a module's own work: the `gap`-th between its children."""

    unit: int
    gap: int
    what: str  # "forward", "backward", "recompute"


BEFORE, BETWEEN, LOSS, AFTER = "before", "between", "loss", "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A step's own time: in each place of the model, and outside of it."""

    inside: dict[ModuleGap, list[int]]  # one entry for each micro-batch
    outside: dict[str, int]


_SUFFIX = re.compile(r" \[pg=\d+\]$")


def shape_of(line: Timeline) -> Shape:
    """Who contains whom, from one step's forwards. Raises InputError."""
    units = line.data.header.units
    states: dict[str, list[int]] = defaultdict(list)
    for at, spec in enumerate(units):
        states[f"{spec.tree} {_SUFFIX.sub('', spec.fqn)}"].append(at)
    first = {u: members[0] for members in states.values() for u in members}
    calls = [c for c in calls_of(line.spans, 0) if not c.backward and not c.recompute]
    calls = [c for c in calls if c.unit == first[c.unit]]
    if not calls:
        raise InputError("no unit's forward was recorded: there is nothing to replay")
    twice = [u for u, n in Counter(c.unit for c in calls).items() if n > 1]
    if twice:
        raise InputError(
            f"{units[twice[0]].fqn} runs more than once in a forward: what-if cannot "
            "replay such a model yet"
        )
    children: dict[int, list[int]] = defaultdict(list)
    stack: list[Call] = []
    for call in sorted(calls, key=lambda c: (c.start_ns, -c.end_ns)):
        while stack and stack[-1].end_ns < call.end_ns:
            stack.pop()
        children[stack[-1].unit if stack else VIRTUAL_ROOT].append(call.unit)
        stack.append(call)
    tops = children.pop(VIRTUAL_ROOT)
    models = {units[u].model for u in tops}
    # Roots without parameters are no units: their models' blocks are no one chain.
    if len(tops) > 1 and (len(models) > 1 or any(units[u].is_root for u in tops)):
        raise InputError(
            f"{_whose(line, tops)} several FSDP2 roots: what-if replays one root's "
            "schedule"
        )
    root = tops[0]
    if len(tops) > 1:
        root, children[VIRTUAL_ROOT] = VIRTUAL_ROOT, tops
    return Shape(
        root=root,
        children={u: tuple(c) for u, c in children.items()},
        states={members[0]: tuple(members) for members in states.values()},
    )


def _whose(line: Timeline, tops: Sequence[int]) -> str:
    header = line.data.header
    numbers = {header.units[unit].model for unit in tops}
    if len(numbers) < 2 or header.model is None:
        return "this model has"
    names = [model_name(header.model.models, number) for number in sorted(numbers)]
    return f"this run's models ({', '.join(names)}) have"


def calls_of(spans: Spans, micro_batch: int) -> list[Call]:
    """The forwards and backwards of a micro-batch, without evaluation."""
    rows = of_kinds(spans, Kind.FORWARD, Kind.BACKWARD)
    rows = rows.rows((rows.micro_batch == micro_batch) & (rows.unit != UNKNOWN))
    rows = rows.rows(rows.flags & (Flag.NO_GRAD | Flag.ABORTED) == 0)
    return [
        Call(int(u), kind == Kind.BACKWARD, bool(f & Flag.RECOMPUTE), int(s), int(e))
        for u, kind, f, s, e in zip(
            rows.unit, rows.kind, rows.flags, rows.start_ns, rows.end_ns, strict=True
        )
    ]


HOOKS = (Kind.HOOK, Kind.UNSHARD, Kind.REDUCE, Kind.RESHARD)
"""FSDP2's own calls on the host."""

COPIES = (Kind.COPY_OUT, Kind.REDUCE_COPY_IN)


def busy(spans: Spans, *kinds: Kind) -> Intervals:
    """When at least one span of some kinds was open."""
    rows = of_kinds(spans, *kinds)
    return union(rows.start_ns, rows.end_ns)


def fsdp2_time(line: Timeline) -> Intervals:
    """What of the compute lane is FSDP2's: copies and stalls, and on CPU its calls."""
    spans, stalls = line.spans, line.stalls
    parts = [busy(spans, *COPIES), union(stalls.start_ns, stalls.end_ns)]
    if line.data.header.clock == "host":
        parts.append(busy(spans, Kind.COPY_IN, *HOOKS))
    rows = np.concatenate(parts)
    return union(rows[:, 0], rows[:, 1])


def device_partition(line: Timeline, shape: Shape) -> Partition:
    """A step's time on the compute lane."""
    window = single(line.start_ns, line.end_ns)
    free = complement(fsdp2_time(line), line.start_ns, line.end_ns)
    if Evidence.STALLS not in line.data.evidence:
        free = intersect(free, working(line.spans))
    calls = [calls_of(line.spans, mb) for mb in range(line.record.micro_batches)]
    return _partition(shape, calls, intersect(free, window), line)


def host_partition(line: Timeline, shape: Shape) -> Partition:
    """The same on the host, where it is another clock: what launching costs."""
    spans = line.spans
    taken = busy(spans, *HOOKS, Kind.SYNC, Kind.INPUT, Kind.GC)
    free = complement(taken, line.record.host_start_ns, line.record.host_end_ns)
    calls = [
        _host_calls(line.data, spans, mb) for mb in range(line.record.micro_batches)
    ]
    return _partition(shape, calls, free, line)


def _host_calls(data: RankData, spans: Spans, micro_batch: int) -> list[Call]:
    """From the end of a unit's pre-hook to the start of its post-hook."""
    rows = of_kinds(spans, Kind.HOOK)
    rows = rows.rows(rows.micro_batch == micro_batch)
    rows = rows.rows(np.argsort(rows.start_ns, kind="stable"))
    opened: dict[tuple[int, bool], tuple[int, bool]] = {}
    calls: list[Call] = []
    for unit, name, flags, start, end in zip(
        rows.unit, rows.name, rows.flags, rows.start_ns, rows.end_ns, strict=True
    ):
        hook = data.name(int(name)) or ""
        which, _, direction = hook.partition("_")
        key = int(unit), direction == "backward"
        if which == "pre":
            opened[key] = int(end), bool(flags & Flag.RECOMPUTE)
        elif which == "post" and key in opened:
            since, again = opened.pop(key)
            calls.append(Call(key[0], key[1], again, since, int(start)))
    return calls


def _partition(
    shape: Shape, calls: Sequence[list[Call]], free: Intervals, line: Timeline
) -> Partition:
    inside: dict[ModuleGap, list[int]] = defaultdict(lambda: [0] * len(calls))
    outside: dict[str, int] = defaultdict(int)
    known = set(shape.walk(shape.root))
    edges: list[int] = []
    for mb, of_batch in enumerate(calls):
        mine = [c for c in of_batch if c.unit in known]
        if not mine:
            continue
        forwards = [c.end_ns for c in mine if not c.backward and not c.recompute]
        if not forwards:
            raise InputError(
                f"step {line.step} shows a backward without its forward: a step that "
                "is not whole cannot be replayed"
            )
        forward_end = max(forwards)
        backwards = [c for c in mine if c.backward]
        if shape.root == VIRTUAL_ROOT:
            mine = [*_virtual_calls(mine), *mine]  # outer ones first
        mine = _around_children(shape, mine)
        first, last = min(c.start_ns for c in mine), max(c.end_ns for c in mine)
        begin = min((c.start_ns for c in backwards), default=forward_end)
        outside[LOSS] += _total(free, forward_end, begin)
        outside[BETWEEN if edges else BEFORE] += _total(
            free, edges[-1] if edges else _first(free), first
        )
        edges.append(last)
        for place, ns in _places(shape, mine, free):
            inside[place][mb] += ns
    if edges and len(free):
        outside[AFTER] += _total(free, edges[-1], int(free[-1, 1]))
    return Partition(inside=dict(inside), outside=dict(outside))


def _first(free: Intervals) -> int:
    return int(free[0, 0]) if len(free) else 0


def _total(free: Intervals, start: int, end: int) -> int:
    inside = intersect(free, single(start, end))
    return int((inside[:, 1] - inside[:, 0]).sum())


def _virtual_calls(calls: Sequence[Call]) -> list[Call]:
    """The passes of a root without a unit: they hold all the others."""
    result = []
    for backward in (False, True):
        some = [c for c in calls if c.backward == backward and not c.recompute]
        if some:
            start = min(c.start_ns for c in some)
            end = max(c.end_ns for c in some)
            result.append(Call(VIRTUAL_ROOT, backward, False, start, end))
    return result


def _around_children(shape: Shape, calls: Sequence[Call]) -> list[Call]:
    """Backwards that last as long as those inside them, parents first.

    Where a unit's output is its child's own, its hook comes after the child's.
    """
    begun = {c.unit: c.start_ns for c in reversed(calls) if c.backward}
    around: dict[int, int] = {}
    for unit in reversed(list(shape.walk(shape.root))):
        starts = [around[c] for c in shape.children.get(unit, ()) if c in around]
        own = [begun[unit]] if unit in begun else []
        if starts or own:
            around[unit] = min((*starts, *own))
    moved = [
        c._replace(start_ns=min(c.start_ns, around[c.unit]))
        if c.backward and c.start_ns == begun[c.unit]
        else c
        for c in calls
    ]
    depth = {unit: at for at, unit in enumerate(shape.walk(shape.root))}
    return sorted(moved, key=lambda c: depth[c.unit])


def _places(
    shape: Shape, calls: Sequence[Call], free: Intervals
) -> Iterator[tuple[ModuleGap, int]]:
    """Each free stretch with the place it belongs to."""
    start = np.array([c.start_ns for c in calls], dtype=np.int64)
    end = np.array([c.end_ns for c in calls], dtype=np.int64)
    pieces = innermost(start, end)
    for at, since, until in zip(
        pieces.span, pieces.start_ns, pieces.end_ns, strict=True
    ):
        ns = _total(free, int(since), int(until))
        if not ns:
            continue
        call = calls[int(at)]
        siblings = shape.children.get(call.unit, ())
        done = [
            c
            for c in calls
            if c.unit in siblings
            and c.backward == call.backward
            and call.start_ns <= c.start_ns
            and c.end_ns <= since
        ]
        last = max(done, key=lambda c: c.end_ns, default=None)
        if last is None:
            gap = len(siblings) if call.backward else 0
        else:
            gap = siblings.index(last.unit) + (0 if call.backward else 1)
        what = "backward" if call.backward else "forward"
        yield ModuleGap(call.unit, gap, "recompute" if call.recompute else what), ns
