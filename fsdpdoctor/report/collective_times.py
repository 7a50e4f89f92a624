"""How long collectives took, by kind and size: all that ran, FSDP2's or not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.call_sites import kind_word
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.stall_causes import begins_ns
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import UNKNOWN, Flag, Kind, distinct_rows, percentiles

QUANTILES = (5, 25, 50, 75, 95)
"""Percents of the collectives that took no longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTimes:
    """The judged collectives of one kind and size, of all ranks and groups."""

    kind: str  # "all_gather", "all_to_all"
    fsdp: bool  # whether FSDP2 issued them
    bytes: int | None  # of one; None: the source does not say
    count: int
    ns: tuple[int, ...]  # at `QUANTILES`: with the wait for the last rank
    longest_ns: int


def collective_times(m: Measures) -> list[SizeTimes]:
    """Every kind and size whose ends were seen: FSDP2's first, small sizes first."""
    found: dict[tuple[bool, str, int], list[Int64s]] = defaultdict(list)
    for rank in m.ranks:
        for key, taken in (*_of_fsdp(rank), *_others(rank)):
            found[key].append(taken)
    return [
        _times(*key, np.concatenate(found[key]))
        for key in sorted(found, key=lambda key: (not key[0], key[1], key[2]))
    ]


def _times(fsdp: bool, kind: str, size: int, taken: Int64s) -> SizeTimes:
    at = percentiles(taken, QUANTILES).astype(np.int64)
    return SizeTimes(
        kind=kind,
        fsdp=fsdp,
        bytes=None if size == UNKNOWN else size,
        count=len(taken),
        ns=tuple(at.tolist()),
        longest_ns=int(taken.max()),
    )


_Keyed = tuple[tuple[bool, str, int], Int64s]


def _of_fsdp(rank: RankMeasures) -> Iterator[_Keyed]:
    rows = rank.collectives
    seen = rank.in_judged(rows.step) & (rows.flags & Flag.END_ESTIMATED == 0)
    taken_ns = (rows.end_ns - begins_ns(rank))[seen]
    rows = rows.rows(seen)
    for (kind, size), mine in _grouped(rows.kind, rows.bytes):
        yield (True, Kind(kind).key, size), taken_ns[mine]


def _others(rank: RankMeasures) -> Iterator[_Keyed]:
    rows = rank.others.rows(rank.in_judged(rank.others.step))
    for (name, size), mine in _grouped(rows.name, rows.bytes):
        yield (False, kind_word(rank.name(name)), size), rows.duration_ns[mine]


def _grouped(
    first: npt.NDArray[np.integer], second: npt.NDArray[np.integer]
) -> Iterator[tuple[tuple[int, int], npt.NDArray[np.bool_]]]:
    """The rows of each pair of values."""
    ids = np.stack((first.astype(np.int64), second.astype(np.int64)), axis=1)
    for one, other in distinct_rows(first, second):
        yield (one, other), (ids == (one, other)).all(axis=1)
