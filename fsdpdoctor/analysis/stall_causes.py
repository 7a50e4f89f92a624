"""The five causes of a stall, which add up to it exactly.

For a stall [w0, w1] on a collective that the host issued at h and that ran [c0, c1],
whose last rank arrived at a:

    w0 ... h   host_late  the host had not issued it yet
    h ... c0   queued     issued; its lane was busy, or its copy-in waited
    c0 ... a   straggler  running, but the last rank had not arrived
    a ... c1   wire       all there, bytes moving
    c1 ... w1  tail       done; launch latency, copy-out queueing

Collectives of one communicator run one at a time, whatever their spans say: a recorder
sees one from where its stream came to it, or on the host from its issue on. Until those
before it have ended, it moves nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.timeline import Collectives, Stalls
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import NO_TIME, UNKNOWN, Evidence, distinct

CAUSES = ("host_late", "queued", "straggler", "wire", "tail")


def split_stalls(
    collectives: Collectives, stalls: Stalls, last_arrival_ns: Int64s
) -> dict[str, Int64s]:
    """Each stall's time by cause: [len(stalls)] columns that sum to its duration.

    `last_arrival_ns` belongs to `collectives`; NO_TIME where it cannot be told, and
    then no time is called a straggler's. A collective that was never issued late
    because its issue time is unknown counts as issued when it started.
    """
    row = stalls.collective
    start, end = collectives.start_ns[row], collectives.end_ns[row]
    issued = collectives.issued_ns[row]
    issued = np.where(issued == NO_TIME, start, np.minimum(issued, start))
    arrival = last_arrival_ns[row]
    arrival = np.where(arrival == NO_TIME, start, np.clip(arrival, start, end))
    w0, w1 = stalls.start_ns, stalls.end_ns
    edges = [w0]
    for edge in (issued, start, arrival, end):
        # Ascending and inside the stall, so that the parts neither overlap nor leak.
        edges.append(np.clip(edge, edges[-1], w1))
    edges.append(w1)
    return {cause: edges[at + 1] - edges[at] for at, cause in enumerate(CAUSES)}


def queued_behind(collectives: Collectives, stalls: Stalls) -> npt.NDArray[np.int64]:
    """[len(stalls)]: the row of the collective that each stall's one was queued behind.

    It is the latest collective of the same group that ended between the issue and
    the start of the one waited for; UNKNOWN where there is none, or no group.
    """
    result = np.full(len(stalls), UNKNOWN, dtype=np.int64)
    groups = collectives.group[stalls.collective]
    for group in distinct(groups[groups != UNKNOWN]).tolist():
        at = np.flatnonzero(groups == group)
        row = stalls.collective[at]
        issued, start = collectives.issued_ns[row], collectives.start_ns[row]
        members = np.flatnonzero(collectives.group == group)
        # Of those that end at one time the first row is last, and is taken.
        members = members[np.lexsort((-members, collectives.end_ns[members]))]
        ends = collectives.end_ns[members]
        last = np.searchsorted(ends, start, side="right") - 1
        # One without length ends where it starts: it is not behind itself.
        last -= (last >= 0) & (members[last] == row)
        behind = members[last]
        found = (last >= 0) & (issued != NO_TIME) & (issued < start)
        found &= collectives.end_ns[behind] > issued
        result[at[found]] = behind[found]
    return result


def begins_ns(rank: RankMeasures) -> Int64s:
    """[C]: when each collective of a rank had its communicator. Kernels of a trace
    begin there by themselves.
    """
    rows = rank.collectives
    if Evidence.KERNELS in rank.evidence:
        return rows.start_ns
    from_ns: Int64s = np.minimum(rows.start_ns + held_back(rows)[1], rows.end_ns)
    return from_ns


def held_back(collectives: Collectives) -> tuple[npt.NDArray[np.int64], Int64s]:
    """[C]: the row that each collective was held back by, and for how long.

    By those of its group that were issued before it and had not ended as it started:
    the one that ended last. UNKNOWN and 0 where there is none, or it is not known.
    """
    behind = np.full(len(collectives), UNKNOWN, dtype=np.int64)
    held_ns = np.zeros(len(collectives), dtype=np.int64)
    known = (collectives.group != UNKNOWN) & (collectives.issued_ns != NO_TIME)
    for group in distinct(collectives.group[known]).tolist():
        mine = np.flatnonzero(known & (collectives.group == group))
        order = mine[np.lexsort((collectives.seq[mine], collectives.issued_ns[mine]))]
        ends = collectives.end_ns[order]
        reach = np.maximum.accumulate(ends)
        # The first of those before it that ends last.
        last = order[np.maximum.accumulate(_first_at_reach(reach))]
        over = reach[:-1] - collectives.start_ns[order[1:]]
        held = np.flatnonzero(over > 0)
        behind[order[1:][held]] = last[:-1][held]
        held_ns[order[1:][held]] = over[held]
    return behind, held_ns


def _first_at_reach(reach: Int64s) -> npt.NDArray[np.int64]:
    """Positions where the latest end so far was raised; 0 elsewhere."""
    raised = np.diff(reach, prepend=reach[:1]) > 0
    return np.where(raised, np.arange(len(reach)), 0)


def own_durations(rows: Collectives) -> Int64s:
    """How long each collective had its communicator.

    In the order of their numbers, whatever their times: those of a replay.
    """
    result = rows.duration_ns.copy()
    for group in distinct(rows.group):
        mine = np.flatnonzero(rows.group == group)
        order = mine[np.lexsort((rows.seq[mine], rows.step[mine]))]
        ends = rows.end_ns[order]
        previous = np.concatenate((rows.start_ns[order[:1]], ends[:-1]))
        reach = np.maximum.accumulate(previous)
        result[order] = np.maximum(ends - np.maximum(rows.start_ns[order], reach), 0)
    return result
