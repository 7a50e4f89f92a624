"""Run and Measures -> tracks: every rank's spans and stalls on one clock.

Stalls, causes, last arrivals and clocks are the analysis's own; nothing is judged
here. A step is moved as a whole, so that no duration within it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from fsdpdoctor.analysis.clock_alignment import RankClock
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.finding import Location
from fsdpdoctor.intervals import Int64s, join, single, subtract, union
from fsdpdoctor.renderers.formatting import unit_name
from fsdpdoctor.renderers.reading.unit_names import UnitNames, names_on
from fsdpdoctor.report.value import FindingRow
from fsdpdoctor.run import RankData, Run
from fsdpdoctor.schema import (
    COLLECTIVE_KINDS,
    NO_TIME,
    Evidence,
    Flag,
    Kind,
    MemorySamples,
    Spans,
    Table,
)
from fsdpdoctor_dashboard.data.slices import (
    Exposed,
    RankFacts,
    RankNames,
    StepRows,
    Track,
)
from fsdpdoctor_dashboard.data.store import Store

_T = TypeVar("_T", bound=Table)

Progress = Callable[[int, int], None]
"""Called with how many ranks are done, and of how many."""


def tracks_of(
    run: Run,
    measures: Measures,
    progress: Progress | None = None,
    named: UnitNames | None = None,
) -> Iterator[Track]:
    """Each rank in turn, so that memory holds one rank's record at a time."""
    by_rank = {rank.rank: rank for rank in measures.ranks}
    for done, source in enumerate(run.sources):
        if progress is not None:
            progress(done, len(run.sources))
        if source.rank in by_rank:  # the others could not be read, and are named
            rank = by_rank[source.rank]
            among = among_all(measures, rank.rank)
            yield track_of(source.load(), rank, among, named)


class AmongAll(NamedTuple):
    """What one rank's track takes that only all ranks together tell."""

    clock: RankClock
    causes: Mapping[str, Int64s]  # of its stalls
    last_arrival_ns: Int64s  # of its collectives
    stalls_known: bool


def among_all(measures: Measures, rank: int) -> AmongAll:
    """That of one rank."""
    return AmongAll(
        clock=measures.alignment.clocks[rank],
        causes=measures.causes[rank],
        last_arrival_ns=measures.alignment.last_arrival_ns[rank],
        stalls_known=measures.stalls_known,
    )


def track_of(
    data: RankData,
    rank: RankMeasures,
    among: AmongAll,
    named: UnitNames | None = None,
) -> Track:
    """One rank as the timeline takes it. `named` says what units are called, where that
    is not in the rank's own record.
    """
    clock = among.clock

    def shift_at(time_ns: int) -> int:
        at = np.array([time_ns], dtype=np.int64)
        return int(clock.to_reference(at)[0]) - time_ns

    shifts = [shift_at(record.start_ns) for record in data.steps]
    parts = [
        _moved(record.spans, shift, ("start_ns", "end_ns", "issued_ns"))
        for record, shift in zip(data.steps, shifts, strict=True)
    ]
    if len(data.outside):
        shift = shift_at(int(data.outside.start_ns[0]))
        parts.append(_moved(data.outside, shift, ("start_ns", "end_ns", "issued_ns")))
    memory = [
        _moved(record.memory, shift, ("time_ns",))
        for record, shift in zip(data.steps, shifts, strict=True)
    ]
    by_step = {r.step: s for r, s in zip(data.steps, shifts, strict=True)}
    spans = Spans.concat(parts)
    of_collective = _collective_rows([record.spans for record in data.steps])
    exposed = _exposed(rank, among, by_step, of_collective)
    if data.header.device == "cpu":
        exposed = Exposed.concat([exposed, _cut_off(spans, data, exposed)])
    return Track(
        rank=data.rank,
        spans=spans,
        exposed=exposed,
        steps=_steps(data, shifts),
        memory=MemorySamples.concat(memory),
        arrived_ns=_arrivals(rank, among, by_step, of_collective, len(spans)),
        roots=frozenset(i for i, unit in enumerate(data.header.units) if unit.is_root),
        traced=Evidence.STALLS not in data.evidence,
        names=_names(rank, names_on(rank) if named is None else named),
        facts=RankFacts(
            exposed_share=_exposed_share(rank, among),
            typical_step=middle_step(rank),
            ended=rank.header.ended,
        ),
    )


def _names(rank: RankMeasures, named: UnitNames) -> RankNames:
    recorded = tuple(unit_name(unit.fqn) for unit in rank.units)
    units = tuple(named(unit.fqn) for unit in rank.units)
    return RankNames(
        units=units,
        recorded=() if units == recorded else recorded,
        groups=tuple(unit_name(group.name) for group in rank.header.groups),
        names=tuple(unit_name(name) for name in rank.names),
    )


def _exposed_share(rank: RankMeasures, among: AmongAll) -> float | None:
    """Of the judged steps' time, as in the report."""
    whole = int(rank.steps.duration_ns[rank.judged].sum())
    if not among.stalls_known or not whole:
        return None
    stalls = rank.stalls.rows(rank.in_judged(rank.stalls.step))
    return int(stalls.duration_ns.sum()) / whole


def middle_step(rank: RankMeasures) -> int | None:
    """The judged step of the middle length; None: no step was judged."""
    rows = np.flatnonzero(rank.judged)
    if not len(rows):
        return None
    order = np.argsort(rank.steps.duration_ns[rows], kind="stable")
    return int(rank.steps.step[rows[order[len(order) // 2]]])


def place_on_timeline(
    measures: Measures, rank: int, step: int, time_ns: int
) -> int | None:
    """A rank's own time within a step, on the clock all ranks share."""
    clock = measures.alignment.clocks.get(rank)
    if clock is None or rank not in measures.rank_places:
        return None
    found = measures.of(rank)
    starts = found.steps.start_ns[found.steps.step == step]
    if len(starts) == 0:  # a step that never ended has a place on the clock, too
        return int(clock.to_reference(np.array([time_ns], dtype=np.int64))[0])
    return time_ns + int(clock.to_reference(starts[:1])[0]) - int(starts[0])


def _moved(table: _T, shift: int, times: tuple[str, ...]) -> _T:
    if shift == 0:
        return table
    moved = {}
    for name in times:
        values = getattr(table, name)
        moved[name] = np.where(values == NO_TIME, NO_TIME, values + shift)
    return replace(table, **moved)


def _steps(data: RankData, shifts: list[int]) -> StepRows:
    return StepRows.build(
        len(data.steps),
        step=[record.step for record in data.steps],
        start_ns=[r.start_ns + s for r, s in zip(data.steps, shifts, strict=True)],
        end_ns=[r.end_ns + s for r, s in zip(data.steps, shifts, strict=True)],
    )


def _collective_rows(steps: list[Spans]) -> Int64s:
    """For each row of the rank's `Collectives`, its row in the rank's spans."""
    rows = []
    edges = np.cumsum([0, *map(len, steps)])
    for spans, (first, _) in zip(steps, pairwise(edges.tolist()), strict=True):
        mine = np.flatnonzero(np.isin(spans.kind, COLLECTIVE_KINDS))
        rows.append(mine[np.argsort(spans.start_ns[mine], kind="stable")] + first)
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)


def _exposed(
    rank: RankMeasures, among: AmongAll, by_step: dict[int, int], rows: Int64s
) -> Exposed:
    stalls, causes = rank.stalls, among.causes
    shift = np.array([by_step[int(step)] for step in stalls.step], dtype=np.int64)
    return Exposed.build(
        len(stalls),
        start_ns=stalls.start_ns + shift,
        end_ns=stalls.end_ns + shift,
        kind=stalls.kind,
        phase=stalls.phase,
        flags=stalls.flags,
        unit=stalls.unit,
        step=stalls.step,
        span=rows[stalls.collective],
        **{cause: causes[cause] for cause in CAUSES},
    )


_WAITED_IN = {
    Kind.UNSHARD: Kind.ALL_GATHER,
    Kind.ALL_GATHER: Kind.ALL_GATHER,
    Kind.REDUCE: Kind.REDUCE_SCATTER,
    Kind.REDUCE_SCATTER: Kind.REDUCE_SCATTER,
    Kind.ALL_REDUCE: Kind.ALL_REDUCE,
}
"""Calls in which a host stands still, by kind of the collective it waits for."""


def _cut_off(spans: Spans, data: RankData, stalls: Exposed) -> Exposed:
    """Waiting in calls that an exception ended: for a rank that never came.

    The step has no end, so the analysis judges it not and knows no stalls in it; drawn
    as nothing it would be the work around it. Only of a host that computes itself.
    """
    waited = np.isin(spans.kind, list(_WAITED_IN)) & (spans.flags & Flag.ABORTED != 0)
    rows = np.flatnonzero(waited)
    rows = rows[np.argsort(spans.start_ns[rows], kind="stable")]
    steps = np.repeat([r.step for r in data.steps], [len(r.spans) for r in data.steps])
    taken = union(stalls.start_ns, stalls.end_ns)
    found: list[tuple[int, int, int]] = []
    for row in rows[rows < len(steps)].tolist():
        whole = single(int(spans.start_ns[row]), int(spans.end_ns[row]))
        found += [(row, int(a), int(b)) for a, b in subtract(whole, taken)]
        taken = join(taken, whole)
    at = np.array([row for row, _, _ in found], dtype=np.int64)
    start = np.array([a for _, a, _ in found], dtype=np.int64)
    end = np.array([b for _, _, b in found], dtype=np.int64)
    return Exposed.build(
        len(found),
        start_ns=start,
        end_ns=end,
        kind=[_WAITED_IN[Kind(kind)] for kind in spans.kind[at].tolist()],
        phase=spans.phase[at],
        flags=spans.flags[at],
        unit=spans.unit[at],
        step=steps[at],
        span=at,
        **{cause: np.zeros(len(found), dtype=np.int64) for cause in CAUSES}
        | {"straggler": end - start},
    )


def _arrivals(
    rank: RankMeasures,
    among: AmongAll,
    by_step: dict[int, int],
    rows: Int64s,
    count: int,
) -> Int64s:
    arrived = np.full(count, NO_TIME, dtype=np.int64)
    last = among.last_arrival_ns
    steps = rank.collectives.step
    shift = np.array([by_step.get(int(s), 0) for s in steps], dtype=np.int64)
    arrived[rows] = np.where(last == NO_TIME, NO_TIME, last + shift)
    return arrived


def shown_places(measures: Measures, row: FindingRow) -> tuple[Location, ...]:
    """Where a finding can be seen: its places, worst first, else a step of the middle
    length on its rank. Every finding has something to look at.
    """
    if row.places:
        return row.places
    numbers = [n for n in row.ranks if n in measures.rank_places]
    for rank in map(measures.of, numbers or measures.rank_numbers):
        step = middle_step(rank)
        if step is not None:
            at = int(np.flatnonzero(rank.steps.step == step)[0])
            start = int(rank.steps.start_ns[at])
            end = start + int(rank.steps.duration_ns[at])
            return (Location(rank=rank.rank, step=step, start_ns=start, end_ns=end),)
    return ()


class Stretch(NamedTuple):
    """A place as a timeline counts: ns from its origin on, on the shared clock."""

    rank: int
    start: int
    end: int


def stretches_of(
    measures: Measures, store: Store, places: Iterable[Location]
) -> list[Stretch]:
    """Where places lie, those whose step is in the run."""
    found = [stretch_of(measures, store, place) for place in places]
    return [stretch for stretch in found if stretch is not None]


def stretch_of(measures: Measures, store: Store, place: Location) -> Stretch | None:
    """Where a finding's place lies; None: its step is not in the run."""
    start = place_on_timeline(measures, place.rank, place.step, place.start_ns)
    end = place_on_timeline(measures, place.rank, place.step, place.end_ns)
    if start is None or end is None:
        return None
    return Stretch(place.rank, start - store.origin_ns, end - store.origin_ns)
