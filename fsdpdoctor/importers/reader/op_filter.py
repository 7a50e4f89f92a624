"""Which operators a trace's device work asks for: the others need not be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.reader.trace_file import Bools, Cat, Events, Int64s, RowIds
from fsdpdoctor.schema import UNKNOWN, distinct, is_any
from fsdpdoctor.storage.spill import Shelf, blocks, let_go

DEVICE_CATS = (Cat.KERNEL, Cat.MEMCPY, Cat.MEMSET)


def asked_of_ops(events: Events) -> Int64s:
    """The External ids by which a launch can only be found among the operators."""
    called = runtime_calls(events)
    asked = [np.empty(0, dtype=np.int64)]
    for block in blocks(len(events)):
        some = events.rows(block)
        external = some.external
        asks = is_any(some.cat, *DEVICE_CATS) & (external >= 0)
        asks &= external != some.correlation
        asks[asks] = called.find(some.correlation[asks]) == UNKNOWN
        asked.append(distinct(external[asks]))
        let_go(events)
    return distinct(np.concatenate(asked))


class RowsAndValues(NamedTuple):
    """Some rows, and what one column has there."""

    rows: RowIds
    values: Int64s


def rows_that(
    events: Events, of: str, test: Callable[[Events], Bools]
) -> RowsAndValues:
    """The rows of events that pass a test, with a column of theirs."""
    shelf = Shelf({"rows": np.dtype(np.int32), "values": np.dtype(np.int64)})
    for block in blocks(len(events)):
        some = events.rows(block)
        at = np.flatnonzero(test(some))
        shelf.put([("rows", block.start + at), ("values", getattr(some, of)[at])])
        let_go(events)
    return RowsAndValues(**shelf.take())  # type: ignore[arg-type]


def runtime_calls(events: Events) -> RowsById:
    """Runtime calls, by correlation id."""
    found = rows_that(
        events,
        "correlation",
        lambda some: (some.cat == Cat.RUNTIME) & (some.correlation >= 0),
    )
    return RowsById.of(found.values, found.rows)


class RowsById(NamedTuple):
    """Rows, found by an id of theirs."""

    ids: Int64s  # ascending
    rows: RowIds

    @classmethod
    def of(cls, ids: Int64s, rows: npt.NDArray[np.integer]) -> RowsById:
        if not (ids[1:] >= ids[:-1]).all():
            order = np.argsort(ids, kind="stable").astype(np.int32)
            ids, rows = ids[order], rows[order]
        return cls(ids=ids, rows=rows.astype(np.int32))

    def find(self, wanted: Int64s) -> RowIds:
        """For each wanted id the last row that has it, or UNKNOWN."""
        if not len(self.ids):
            return np.full(len(wanted), UNKNOWN, dtype=np.int32)
        at = np.searchsorted(self.ids, wanted, side="right") - 1
        hit = (at >= 0) & (self.ids[np.maximum(at, 0)] == wanted) & (wanted >= 0)
        return np.where(hit, self.rows[at], UNKNOWN).astype(np.int32)
