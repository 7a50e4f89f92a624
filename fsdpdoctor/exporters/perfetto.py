"""Writes ranks as one Chrome trace for Perfetto: our lanes, and what was exposed.

Every rank is a process, every lane a track; exposed stretches have a track of their
own, with their causes; arrows lead from the host's call to the collective and to the
end of the wait for it. A viewer drops slices of one track that overlap without being
nested, so that a lane gets further tracks where its spans do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, NamedTuple, cast

import numpy as np
from isal import igzip

from fsdpdoctor.analysis.no_grad import OF_TREE, model_name
from fsdpdoctor.analysis.timeline import Stalls
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    VIEW_KEY,
    Flag,
    Kind,
    Lane,
    MemorySamples,
    Phase,
    Spans,
    one_of,
)

STEPS_TRACK, EXPOSED_TRACK, FIRST_LANE_TRACK = 1_000, 2_000, 3_000
TRACKS_PER_LANE = 1000
"""Track numbers of one lane: the lane itself and those for overlapping spans."""

LANES = (
    Lane.HOST,
    Lane.COMPUTE,
    Lane.COPY_IN,
    Lane.ALL_GATHER,
    Lane.REDUCE_SCATTER,
    Lane.ALL_REDUCE,
    Lane.OTHER_COMM,
    Lane.COPY,
    Lane.UNSHARDED,
)
"""From top to bottom."""

ISSUED_BY = {
    Kind.ALL_GATHER: Kind.UNSHARD,
    Kind.REDUCE_SCATTER: Kind.REDUCE,
    Kind.ALL_REDUCE: Kind.REDUCE,
}

ENDS_IN = {
    Kind.ALL_GATHER: (Kind.ALL_GATHER_WAIT, Kind.COPY_OUT),
    Kind.REDUCE_SCATTER: (Kind.REDUCE_SCATTER_WAIT,),
    Kind.ALL_REDUCE: (Kind.ALL_REDUCE_WAIT,),
}
"""Where a collective's arrow ends: in the wait, or what could not start before it."""

COUNTED = {
    "allocated": "allocated_bytes",
    "reserved": "reserved_bytes",
    "unsharded": "unsharded_bytes",
}
"""Counter tracks, and the columns of memory samples behind them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankView:
    """A rank to be written, with what only all ranks together can tell."""

    data: RankData
    stalls: Stalls
    causes: Mapping[str, Int64s] = field(default_factory=dict)  # by cause: [stalls]
    to_shared: Callable[[Int64s], Int64s] = lambda time_ns: time_ns
    # this rank's times on the clock that all ranks share


def write_perfetto(
    ranks: Iterable[RankView], path: Path, *, made_from: str, base_ns: int
) -> None:
    """Write all ranks, one after the other; packed where `path` ends in `.gz`.

    `base_ns` is the shared clock's time that the file counts from.
    """
    opened: object = (
        igzip.open(path, "wt", compresslevel=1)  # type: ignore[no-untyped-call]
        if path.suffix == ".gz"
        else path.open("w", encoding="utf-8")
    )
    with cast("IO[str]", opened) as file:
        head = {VIEW_KEY: made_from, "baseTimeNanoseconds": base_ns}
        file.write(json.dumps(head)[:-1])
        file.write(', "displayTimeUnit": "ms", "traceEvents": [')
        separator = "\n"
        for view in ranks:
            for event in rank_events(view, base_ns):
                file.write(separator + json.dumps(event))
                separator = ",\n"
        file.write("\n]}\n")


Event = dict[str, object]


class _Window(NamedTuple):
    """When a slice begins and ends, in microseconds since the file's origin."""

    begins: float
    ends: float


def rank_events(view: RankView, base_ns: int) -> Iterator[Event]:
    """The events of one rank."""
    named = replace(view, data=_of_models(view.data))
    yield from _Writer(view=named, base_ns=base_ns).events()


def _of_models(data: RankData) -> RankData:
    """With units named for who reads: of several models by that, and by no tree."""
    units, model = data.header.units, data.header.model
    if model is None or len({unit.model for unit in units}) < 2:
        return data
    of = [model_name(model.models, unit.model) for unit in units]
    named = tuple(
        replace(unit, fqn=f"{OF_TREE.sub('', unit.fqn)} of {name}")
        for unit, name in zip(units, of, strict=True)
    )
    return replace(data, header=replace(data.header, units=named))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """Makes the events of one rank."""

    view: RankView
    base_ns: int

    def events(self) -> Iterator[Event]:
        data = self.view.data
        rank = data.rank
        host = f" on {data.header.host}" if data.header.host else ""
        yield _meta(rank, 0, "process_name", {"name": f"rank {rank}{host}"})
        yield _meta(rank, 0, "process_sort_index", {"sort_index": rank})
        yield from self._steps()
        yield from self._exposed()
        spans = Spans.concat([*(step.spans for step in data.steps), data.outside])
        spans = spans.rows((spans.start_ns != NO_TIME) & (spans.end_ns != NO_TIME))
        tracks = tracks_of(spans)
        yield from self._lanes(spans, tracks)
        yield from self._arrows(spans, tracks)
        for step in data.steps:
            yield from self._memory(step.memory)

    def _us(self, time_ns: Int64s) -> list[float]:
        """Microseconds since the file's origin, exact to the nanosecond: a float64
        holds three decimals of a hundred days.
        """
        us: list[float] = (
            (self.view.to_shared(time_ns) - self.base_ns) / 1000
        ).tolist()
        return us

    def _tracks(self, first: int, name: str, used: Sequence[int]) -> Iterator[Event]:
        """The names of a lane's tracks, as far as they are used."""
        rank = self.view.data.rank
        for track in sorted(set(used) & set(range(first, first + TRACKS_PER_LANE))):
            shown = name if track == first else f"{name} ({track - first + 1})"
            yield _meta(rank, track, "thread_name", {"name": shown})
            yield _meta(rank, track, "thread_sort_index", {"sort_index": track})

    def _slice(
        self, track: int, name: str, window: _Window, args: Mapping[str, object]
    ) -> Event:
        return {
            "ph": "X",
            "pid": self.view.data.rank,
            "tid": track,
            "name": name,
            "ts": window.begins,
            "dur": round(max(window.ends - window.begins, 0.0), 3),
            "args": args,
        }

    def _windows(self, start_ns: Int64s, end_ns: Int64s) -> Iterator[_Window]:
        return map(_Window, self._us(start_ns), self._us(end_ns))

    def _steps(self) -> Iterator[Event]:
        steps = self.view.data.steps
        starts = np.array([step.start_ns for step in steps], dtype=np.int64)
        ends = np.array([step.end_ns for step in steps], dtype=np.int64)
        tracks = [STEPS_TRACK + level for level in levels_of(starts, ends)]
        yield from self._tracks(STEPS_TRACK, "steps", tracks)
        windows = self._windows(starts, ends)
        for step, track, window in zip(steps, tracks, windows, strict=True):
            args: dict[str, object] = {"complete": step.complete}
            if step.micro_batches != UNKNOWN:
                args["micro_batches"] = step.micro_batches
            yield self._slice(track, f"step {step.step}", window, args)

    def _exposed(self) -> Iterator[Event]:
        stalls = self.view.stalls
        levels = levels_of(stalls.start_ns, stalls.end_ns)
        tracks = [EXPOSED_TRACK + level for level in levels]
        yield from self._tracks(EXPOSED_TRACK, "exposed", tracks)
        windows = self._windows(stalls.start_ns, stalls.end_ns)
        for i, (track, window) in enumerate(zip(tracks, windows, strict=True)):
            kind, unit = Kind(int(stalls.kind[i])), int(stalls.unit[i])
            args: dict[str, object] = {"phase": _phase(int(stalls.phase[i]))}
            for cause, time_ns in self.view.causes.items():
                args[f"{cause}_ns"] = int(time_ns[i])
            name = f"exposed: {_title(kind, self.view.data.unit_name(unit))}"
            yield self._slice(track, name, window, args)

    def _lanes(self, spans: Spans, tracks: Sequence[int]) -> Iterator[Event]:
        for at, lane in enumerate(LANES):
            first = FIRST_LANE_TRACK + at * TRACKS_PER_LANE
            yield from self._tracks(first, lane.label, tracks)
        windows = self._windows(spans.start_ns, spans.end_ns)
        issued = self._us(spans.issued_ns)
        for i, (track, window) in enumerate(zip(tracks, windows, strict=True)):
            args = self._args(spans, i)
            if spans.issued_ns[i] != NO_TIME:
                args["issued_us"] = issued[i]
            yield self._slice(track, self._name(spans, i), window, args)

    def _name(self, spans: Spans, i: int) -> str:
        data = self.view.data
        kind = Kind(int(spans.kind[i]))
        said = data.name(int(spans.name[i]))
        if kind in (Kind.KERNEL, Kind.HOOK, Kind.COLLECTIVE, Kind.SYNC) and said:
            unit = data.unit_name(int(spans.unit[i]))
            return said if kind != Kind.HOOK or unit is None else f"{said} {unit}"
        return _title(kind, data.unit_name(int(spans.unit[i])))

    def _args(self, spans: Spans, i: int) -> dict[str, object]:
        data = self.view.data
        flags = Flag(int(spans.flags[i]))
        said: dict[str, object] = {"phase": _phase(int(spans.phase[i]))}
        for name in ("micro_batch", "bytes", "seq", "stream", "value"):
            value = int(getattr(spans, name)[i])
            if value != UNKNOWN:
                said[name] = value
        if spans.by_unit[i] not in (UNKNOWN, spans.unit[i]):
            said["issued_by"] = data.unit_name(int(spans.by_unit[i]))
        if 0 <= spans.group[i] < len(data.header.groups):
            said["group"] = data.header.groups[int(spans.group[i])].name
        if flags:
            said["flags"] = ", ".join(
                str(flag.name).lower() for flag in Flag if flag and flag in flags
            )
        return said

    def _arrows(self, spans: Spans, tracks: Sequence[int]) -> Iterator[Event]:
        """From the host's call to the collective and to the end of its wait."""
        by_op: dict[tuple[int, int], int] = {}
        for i, (op, kind) in enumerate(
            zip(spans.op.tolist(), spans.kind.tolist(), strict=True)
        ):
            if op != UNKNOWN:
                by_op.setdefault((op, kind), i)
        for i in np.flatnonzero(one_of(spans.kind, list(ISSUED_BY))).tolist():
            kind, op = Kind(int(spans.kind[i])), int(spans.op[i])
            chain: list[tuple[int, int]] = []
            issue = by_op.get((op, ISSUED_BY[kind]))
            if issue is not None:
                chain.append((tracks[issue], int(spans.start_ns[issue])))
            chain.append((tracks[i], int(spans.start_ns[i])))
            ends = [by_op[op, one] for one in ENDS_IN[kind] if (op, one) in by_op]
            ends = [end for end in ends if spans.end_ns[end] > spans.start_ns[end]]
            if ends:
                chain.append((tracks[ends[0]], int(spans.end_ns[ends[0]]) - 1))
            yield from self._flow(f"{self.view.data.rank}.{op}.{int(kind)}", chain)

    def _flow(self, name: str, chain: Sequence[tuple[int, int]]) -> Iterator[Event]:
        if len(chain) < 2:
            return
        times = self._us(np.array([time_ns for _, time_ns in chain], dtype=np.int64))
        for at, ((track, _), us) in enumerate(zip(chain, times, strict=True)):
            phase = "s" if at == 0 else "f" if at == len(chain) - 1 else "t"
            yield {
                "ph": phase,
                "bp": "e",  # the slice around this moment, not the next one
                "cat": "collective",
                "name": "collective",
                "id": name,
                "pid": self.view.data.rank,
                "tid": track,
                "ts": us,
            }

    def _memory(self, samples: MemorySamples) -> Iterator[Event]:
        for word, column in COUNTED.items():
            values = getattr(samples, column)
            known = (values != UNKNOWN) & (samples.time_ns != NO_TIME)
            times = self._us(samples.time_ns[known])
            for us, value in zip(times, values[known].tolist(), strict=True):
                yield {
                    "ph": "C",
                    "pid": self.view.data.rank,
                    "name": f"{word} bytes",
                    "ts": us,
                    "args": {"bytes": value},
                }


def tracks_of(spans: Spans) -> list[int]:
    """A track for every span: its lane's, or a further one of its lane."""
    tracks = np.zeros(len(spans), dtype=np.int64)
    for at, lane in enumerate(LANES):
        mine = np.flatnonzero(spans.lane == lane)
        apart = levels_of(spans.start_ns[mine], spans.end_ns[mine])
        tracks[mine] = FIRST_LANE_TRACK + at * TRACKS_PER_LANE + np.array(apart)
    found: list[int] = tracks.tolist()
    return found


def levels_of(start_ns: Int64s, end_ns: Int64s) -> list[int]:
    """A level for every span: the first in which it is apart from what is there
    already, or nested in it.
    """
    levels = [0] * len(start_ns)
    stacks: list[list[int]] = []  # by level: ends of the spans that are open
    # The longer of two that begin together is around the other.
    for i in np.lexsort((-end_ns, start_ns)).tolist():
        start, end = int(start_ns[i]), int(end_ns[i])
        for level in range(TRACKS_PER_LANE):
            if level == len(stacks):
                stacks.append([])
            stack = stacks[level]
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1] or level == TRACKS_PER_LANE - 1:
                stack.append(end)
                levels[i] = level
                break
    return levels


def _meta(rank: int, track: int, name: str, args: Mapping[str, object]) -> Event:
    return {"ph": "M", "pid": rank, "tid": track, "name": name, "args": args}


def _title(kind: Kind, unit: str | None) -> str:
    word = kind.label
    return word if unit is None else f"{word} {unit}"


def _phase(phase: int) -> str:
    return Phase(phase).key
