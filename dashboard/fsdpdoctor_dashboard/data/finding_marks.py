"""All that a finding is about, on all ranks, from the few places that it names.

A finding says where it is seen worst. What stands there says what it is: an exposed
stretch of a kind and a pass, or an event of the host. Those like it, of the finding's
units and ranks, are what a timeline lights up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.renderers.formatting import unit_name
from fsdpdoctor.report.value import FindingRow
from fsdpdoctor_dashboard.data.rank_tracks import Stretch, stretches_of
from fsdpdoctor_dashboard.data.store import RankTable, Store

MOST_LIT = 2_000
"""Stretches of one finding; the longest, of more."""

Row = tuple[int, ...]


def finding_marks(
    measures: Measures, store: Store, row: FindingRow, most: int = MOST_LIT
) -> list[Stretch]:
    """What lights up for a finding of the report; nothing where it names no place."""
    return marks_like(
        store,
        stretches_of(measures, store, row.places),
        units=map(unit_name, row.units),
        ranks=row.ranks,
        most=most,
    )


def marks_like(
    store: Store,
    places: Sequence[Stretch],
    *,
    units: Iterable[str] = (),
    ranks: Iterable[int] = (),
    most: int = MOST_LIT,
) -> list[Stretch]:
    """What is like the marks at some places; the places themselves where none is there.

    No units or no ranks: all of them.
    """
    wanted, among = frozenset(units), [r for r in ranks if r in store.spans]
    among = among or list(store.ranks)
    for tables, names in ((store.exposed, ("kind", "phase")), (store.spans, ("kind",))):
        kinds = {
            kind
            for place in places
            if place.rank in tables
            for kind in _at(store, tables[place.rank], place, names)
        }
        if not kinds:
            continue
        found = [
            stretch
            for rank in among
            for stretch in _like(store, tables[rank], rank, names, kinds, wanted)
        ]
        return _longest({*found, *places}, most)
    return list(places)


def _at(
    store: Store, table: RankTable, place: Stretch, names: tuple[str, ...]
) -> set[Row]:
    start, end = _stretches(store, table)
    rows = np.flatnonzero((start == place.start) & (end == place.end))
    columns = [table.column(name)[rows].tolist() for name in names]
    return set(zip(*columns, strict=True))


def _like(
    store: Store,
    table: RankTable,
    rank: int,
    names: tuple[str, ...],
    kinds: set[Row],
    wanted: frozenset[str],
) -> list[Stretch]:
    columns = [table.column(name) for name in names]
    here: npt.NDArray[np.bool_] = np.zeros(len(table), dtype=bool)
    for kind in kinds:
        here |= np.logical_and.reduce(
            [column == value for column, value in zip(columns, kind, strict=True)]
        )
    if wanted:
        known = store.names[rank].in_record
        ids = [at for at, name in enumerate(known) if name in wanted]
        here &= np.isin(table.column("unit"), ids)
    start, end = _stretches(store, table)
    rows = np.flatnonzero(here)
    return [
        Stretch(rank, a, b)
        for a, b in zip(start[rows].tolist(), end[rows].tolist(), strict=True)
    ]


def _stretches(store: Store, table: RankTable) -> tuple[Int64s, Int64s]:
    origin = store.origin_ns
    return table.column("start_ns") - origin, table.column("end_ns") - origin


def _longest(stretches: Iterable[Stretch], most: int) -> list[Stretch]:
    by_length = sorted(stretches, key=lambda s: (s.start - s.end, s.rank, s.start))
    return sorted(by_length[:most])
