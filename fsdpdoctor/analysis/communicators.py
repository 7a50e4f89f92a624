"""Collectives of one communicator run one at a time, whatever their spans say.

A recorder sees a collective from where its stream came to it, or on the host from its
issue on. Until those before it on its communicator have ended, it moves nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.timeline import Collectives
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import NO_TIME, UNKNOWN, Evidence


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
    for group in np.unique(collectives.group[known]).tolist():
        mine = np.flatnonzero(known & (collectives.group == group))
        order = mine[np.lexsort((collectives.seq[mine], collectives.issued_ns[mine]))]
        ends = collectives.end_ns[order]
        reach = np.maximum.accumulate(ends)
        # The first of those before it that ends last.
        last = order[np.maximum.accumulate(_first_at_reach(ends, reach))]
        over = reach[:-1] - collectives.start_ns[order[1:]]
        held = np.flatnonzero(over > 0)
        behind[order[1:][held]] = last[:-1][held]
        held_ns[order[1:][held]] = over[held]
    return behind, held_ns


def _first_at_reach(ends: Int64s, reach: Int64s) -> npt.NDArray[np.int64]:
    """Positions where the latest end so far was raised; 0 elsewhere."""
    raised = np.diff(reach, prepend=ends[:1] - 1) > 0
    return np.where(raised, np.arange(len(ends)), 0)


def own_durations(rows: Collectives) -> Int64s:
    """How long each collective had its communicator.

    In the order of their numbers, whatever their times: those of a replay.
    """
    result = rows.duration_ns.copy()
    for group in np.unique(rows.group):
        mine = np.flatnonzero(rows.group == group)
        order = mine[np.lexsort((rows.seq[mine], rows.step[mine]))]
        ends = rows.end_ns[order]
        previous = np.concatenate((rows.start_ns[order[:1]], ends[:-1]))
        reach = np.maximum.accumulate(previous)
        result[order] = np.maximum(ends - np.maximum(rows.start_ns[order], reach), 0)
    return result
