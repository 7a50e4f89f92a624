"""The report's rows per collective and per rank."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.stall_causes import begins_ns
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.network import bus_factor
from fsdpdoctor.report.value import CollectiveRow, RankRow
from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    Evidence,
    Flag,
    GroupSpec,
    Kind,
    distinct,
    distinct_rows,
    median,
)

_Row = tuple[GroupSpec | None, int, int]
"""What collectives are put together by: group, kind, bytes."""


def collective_rows(m: Measures) -> tuple[CollectiveRow, ...]:
    """Every size of every kind on every group, the costliest first."""
    durations: dict[_Row, list[Int64s]] = defaultdict(list)
    wires: dict[_Row, list[Int64s]] = defaultdict(list)
    counts: dict[_Row, int] = defaultdict(int)
    for rank in m.ranks:
        judged = rank.in_judged(rank.collectives.step)
        rows = rank.collectives.rows(judged)
        arrival = m.alignment.last_arrival_ns[rank.rank][judged]
        seen = rows.flags & Flag.END_ESTIMATED == 0
        begin_ns = begins_ns(rank)[judged]
        wire_ns = rows.end_ns - np.maximum(arrival, begin_ns)
        # Nothing moves in no time: a last arrival after the end is a wrong match.
        told = (arrival != NO_TIME) & (wire_ns > 0)
        groups = rank.header.groups
        ids = np.stack((rows.group, rows.kind, rows.bytes), axis=1)
        for group, kind, size in distinct_rows(rows.group, rows.kind, rows.bytes):
            mine = (ids == (group, kind, size)).all(axis=1)
            spec = groups[group] if 0 <= group < len(groups) else None
            row = (spec, kind, size)
            counts[row] += int(mine.sum())
            durations[row].append((rows.end_ns - begin_ns)[mine & seen])
            wires[row].append(wire_ns[mine & seen & told])
    result = [
        _collective_row(row, count, _median(durations[row]), _median(wires[row]))
        for row, count in counts.items()
    ]
    return tuple(sorted(result, key=lambda r: -r.count * (r.median_ns or 0)))


def _median(parts: list[Int64s]) -> int | None:
    values = np.concatenate(parts)
    return int(median(values)) if len(values) else None


def _collective_row(
    row: _Row, count: int, median_ns: int | None, wire_ns: int | None
) -> CollectiveRow:
    group, kind, size = row
    algorithm = size / median_ns if median_ns and size != UNKNOWN else None
    wire = size / wire_ns if wire_ns and size != UNKNOWN else None
    factor = bus_factor(Kind(kind), group.size) if group and group.size > 0 else None
    return CollectiveRow(
        group=group.name if group else None,
        kind=Kind(kind).key,
        bytes=None if size == UNKNOWN else size,
        count=count,
        median_ns=median_ns,
        algbw_gbps=algorithm,
        busbw_gbps=None if algorithm is None or factor is None else algorithm * factor,
        role=group.role if group else None,
        group_size=group.size if group and group.size > 0 else None,
        median_wire_ns=wire_ns,
        wire_busbw_gbps=None if wire is None or factor is None else wire * factor,
    )


def rank_rows(m: Measures) -> tuple[RankRow, ...]:
    """Every rank that left a record."""
    waits = {rank.rank: waits_by_last(m, rank) for rank in m.ranks}
    return tuple(_rank_row(m, rank, waits) for rank in m.ranks)


def waits_by_last(m: Measures, rank: RankMeasures) -> dict[int, int]:
    """How long a rank waited in collectives of its judged steps, by the last rank.

    Nanoseconds over all judged steps. Ranks that nobody waited for are absent.
    """
    last, arrival, start = _arrivals(m, rank)
    wait_ns = arrival - start
    return {
        int(other): int(wait_ns[last == other].clip(0).sum())
        for other in distinct(last)
        if other != UNKNOWN
    }


class _Arrivals(NamedTuple):
    """The collectives that count: who came last to each, when, and when this rank."""

    last: npt.NDArray[np.int32]
    arrival_ns: Int64s
    start_ns: Int64s


def _arrivals(m: Measures, rank: RankMeasures) -> _Arrivals:
    """Of every kind of collective: of the judged steps, of a whole capture if it has no
    step.
    """
    others, theirs = rank.other_collectives, m.alignment.others[rank.rank]
    own = rank.in_judged(rank.collectives.step)
    beside = rank.in_judged(others.step)
    if not len(rank.steps):
        beside[:] = True
    last, arrival = m.alignment.last_rank, m.alignment.last_arrival_ns
    start = rank.collectives.start_ns
    return _Arrivals(
        np.concatenate((last[rank.rank][own], theirs.last_rank[beside])),
        np.concatenate((arrival[rank.rank][own], theirs.last_arrival_ns[beside])),
        np.concatenate((start[own], others.start_ns[beside])),
    )


def _rank_row(
    m: Measures, rank: RankMeasures, waits: dict[int, dict[int, int]]
) -> RankRow:
    steps = int(rank.judged.sum())
    matched = Evidence.RANKS in m.evidence and steps > 0
    stalls = rank.stalls.rows(rank.in_judged(rank.stalls.step))
    clock = m.alignment.clocks[rank.rank]
    known = clock.residual_ns is not None
    last = _arrivals(m, rank).last
    caused = sum(waits[other].get(rank.rank, 0) for other in waits)
    exposed = int(stalls.duration_ns.sum())
    durations = rank.steps.duration_ns[rank.judged]
    return RankRow(
        rank=rank.rank,
        overlap_share=rank.overlap["all"].share if m.stalls_known else None,
        exposed_ns_per_step=(
            round(exposed / steps) if m.stalls_known and steps else None
        ),
        wait_ns_per_step=(
            round(sum(waits[rank.rank].values()) / steps) if matched else None
        ),
        last_arrivals=int((last == rank.rank).sum())
        if matched or (m.alignment.matched and not len(rank.steps))
        else None,
        clock_offset_ns=clock.offset_ns if known else None,
        clock_residual_ns=clock.residual_ns,
        wait_caused_ns_per_step=round(caused / steps) if matched else None,
        step_ns=int(median(durations)) if steps else None,
        host=rank.header.host,
    )
