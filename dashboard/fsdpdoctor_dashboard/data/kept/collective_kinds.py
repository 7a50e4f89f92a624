"""What collectives of each kind took, and the line through their sizes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.stall_causes import begins_ns
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import (
    COLLECTIVE_KINDS,
    NO_TIME,
    UNKNOWN,
    Flag,
    Kind,
)
from fsdpdoctor.simulate.calibration.comm_cost import FREE, Fit, fit_sizes

FEWEST_SIZES = 3
"""Through two points there is always a line: it says nothing of a third."""

MOST_OFF = 0.2
"""Of a collective's time. What is further off in the median is no line."""


class KindTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of one kind: what they took, and the line through their wire."""

    kind: Kind
    fit: Fit
    matched: bool  # the fit leaves out the wait for the last rank
    count: int
    median_ns: float
    p99_ns: float
    longest_ns: float

    @property
    def name(self) -> str:
        """As FSDP2 calls it."""
        return self.kind.key

    @property
    def has_line(self) -> bool:
        """Whether time grows with size, along a line that the times lie on."""
        return (
            self.fit.sizes >= FEWEST_SIZES
            and self.fit.wire.bytes_per_second < FREE
            and self.fit.residual_share <= MOST_OFF
        )


def kinds_of(measures: Measures) -> list[KindTimes]:
    """Each kind that the run has, from all ranks' judged collectives; the rows of one
    kind at a time.
    """
    seen = ((kind, _of_kind(measures, kind)) for kind in COLLECTIVE_KINDS)
    return [_times_of(kind, rows) for kind, rows in seen if len(rows.taken_ns)]


def _times_of(kind: Kind, seen: _Seen) -> KindTimes:
    told = seen.wire_ns > 0
    matched = bool(told.any())
    if matched and not told.all():
        fit = fit_sizes(seen.bytes[told], seen.unit[told], seen.wire_ns[told])
    else:
        taken_ns = seen.wire_ns if matched else seen.taken_ns
        fit = fit_sizes(seen.bytes, seen.unit, taken_ns)
    median, p99, longest = np.percentile(seen.taken_ns, (50, 99, 100)).tolist()
    return KindTimes(
        kind=kind,
        fit=fit,
        matched=matched,
        count=len(seen.taken_ns),
        median_ns=median,
        p99_ns=p99,
        longest_ns=longest,
    )


class _Seen(NamedTuple):
    """Collectives whose end and size were seen."""

    taken_ns: Int64s  # from where each had its communicator
    wire_ns: Int64s  # on the wire, or 0
    bytes: Int64s
    unit: npt.NDArray[np.int32]


def _of_kind(measures: Measures, kind: Kind) -> _Seen:
    """Those of a kind, of all ranks."""
    parts: list[_Seen] = []
    for rank in measures.ranks:
        rows = rank.collectives
        mine = rank.in_judged(rows.step) & (rows.kind == kind)
        mine &= (rows.flags & Flag.END_ESTIMATED == 0) & (rows.bytes != UNKNOWN)
        arrival = measures.alignment.last_arrival_ns[rank.rank][mine]
        start, end = begins_ns(rank)[mine], rows.end_ns[mine]
        wire_ns = np.maximum(end - np.maximum(arrival, start), 0)
        wire_ns = np.where(arrival == NO_TIME, 0, wire_ns)
        parts.append(_Seen(end - start, wire_ns, rows.bytes[mine], rows.unit[mine]))
    columns = [[*column] for column in zip(*parts, strict=True)]
    parts.clear()  # of millions of rows: a column's pieces go when it is whole
    return _Seen(*(np.concatenate(columns.pop(0)) for _ in _Seen._fields))
