"""Classic overlap: communication, and how much of it ran under compute kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fsdpdoctor.intervals import (
    Int64s,
    Intervals,
    covered_ns,
    intersect,
    total_ns,
    union,
)
from fsdpdoctor.schema import (
    COMMUNICATION_LANES,
    DEVICE_WORK,
    NO_TIME,
    Kind,
    Spans,
)
from fsdpdoctor.shelf import BLOCK_ROWS, let_go

OVERLAP_KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Classic overlap of one kind of communication: busy, and busy under compute.

    For a trace it covers the whole capture and kernels only; for a record, the
    judged steps.
    """

    communication_ns: int
    overlapped_ns: int

    @property
    def exposed_ns(self) -> int:
        return self.communication_ns - self.overlapped_ns

    @property
    def share(self) -> float | None:
        """None where there was no communication."""
        if not self.communication_ns:
            return None
        return self.overlapped_ns / self.communication_ns

    def __add__(self, other: Overlap) -> Overlap:
        return Overlap(
            communication_ns=self.communication_ns + other.communication_ns,
            overlapped_ns=self.overlapped_ns + other.overlapped_ns,
        )


NO_OVERLAP = Overlap(communication_ns=0, overlapped_ns=0)

Overlaps = Mapping[str, Overlap]
"""By kind of OVERLAP_KINDS."""


def overlap_under(spans: Spans, compute: Intervals) -> Overlaps:
    """How much of some spans' communication ran under compute that is known."""
    return {
        kind: Overlap(
            communication_ns=total_ns(busy),
            overlapped_ns=total_ns(intersect(busy, compute)),
        )
        for kind, busy in _communication([spans]).items()
    }


def overlap_of_capture(parts: Sequence[Spans]) -> Overlaps:
    """The same for a whole trace, in which kernels say when compute ran.

    Its parts are a rank's steps and what lies outside them.
    """
    busy = _communication(parts)
    edges = np.concatenate(list(busy.values()))
    covered = np.zeros(len(edges), dtype=np.int64)
    for stretches in _compute(parts):
        covered += covered_ns(edges[:, 0], edges[:, 1], stretches)
    ends = np.cumsum([len(one) for one in busy.values()]).tolist()
    return {
        kind: Overlap(
            communication_ns=total_ns(one),
            overlapped_ns=int(covered[end - len(one) : end].sum()),
        )
        for (kind, one), end in zip(busy.items(), ends, strict=True)
    }


def _communication(parts: Sequence[Spans]) -> dict[str, Intervals]:
    """When communication of each kind was running, in the order of OVERLAP_KINDS."""
    found = {}
    for name in OVERLAP_KINDS:
        if name == "all":
            which = [_is_any(part.lane, COMMUNICATION_LANES) for part in parts]
        else:
            which = [part.kind == Kind[name.upper()] for part in parts]
        pairs = list(zip(parts, which, strict=True))
        found[name] = union(
            np.concatenate([part.start_ns[rows] for part, rows in pairs]),
            np.concatenate([part.end_ns[rows] for part, rows in pairs]),
        )
    return found


def _is_any(
    column: npt.NDArray[np.int8], values: Sequence[int]
) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(column), dtype=np.bool_)
    for value in values:
        found |= column == value
    return found


class _Track(NamedTuple):
    """A part's spans, by start."""

    kind: npt.NDArray[np.int8]
    start_ns: Int64s
    end_ns: Int64s

    @classmethod
    def of(cls, spans: Spans) -> Self:
        kind, start_ns, end_ns = spans.kind, spans.start_ns, spans.end_ns
        if not (start_ns[1:] >= start_ns[:-1]).all():
            order = np.argsort(start_ns, kind="stable")
            kind, start_ns, end_ns = kind[order], start_ns[order], end_ns[order]
        return cls(kind=kind, start_ns=start_ns, end_ns=end_ns)

    def compute(self, begin_ns: int, end_ns: int | None) -> tuple[Int64s, Int64s]:
        """Starts and ends of the compute kernels that began in a window."""
        first = int(np.searchsorted(self.start_ns, begin_ns))
        last = None if end_ns is None else int(np.searchsorted(self.start_ns, end_ns))
        which = _is_any(self.kind[first:last], DEVICE_WORK)
        return self.start_ns[first:last][which], self.end_ns[first:last][which]


def _compute(parts: Sequence[Spans]) -> Iterator[Intervals]:
    """When compute kernels ran, a window of the capture at a time: stretches by start
    that do not overlap, but may touch and be empty.

    What a kernel adds is what lies after the end of all that began before it. So the
    kernels of a trace are never held together, nor their union.
    """
    tracks = [_Track.of(part) for part in parts]
    begins = _windows([track.start_ns for track in tracks])
    reach = NO_TIME
    for begin, end in zip(begins, [*begins, None][1:], strict=True):
        found = [track.compute(begin, end) for track in tracks]
        starts = np.concatenate([one for one, _ in found])
        ends = np.concatenate([one for _, one in found])
        if not len(starts):
            continue
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        reached = np.maximum.accumulate(np.maximum(ends, reach))
        starts = np.maximum(starts, np.concatenate(([reach], reached[:-1])))
        reach = int(reached[-1])
        yield np.stack((starts, np.maximum(starts, reached)), axis=1)
    let_go(*parts)


def _windows(starts: Sequence[Int64s]) -> list[int]:
    """Where to begin a new window, so that about a block of rows starts in each."""
    stride = BLOCK_ROWS // 8
    marks = np.concatenate([one[::stride] for one in starts])
    rows = np.concatenate(
        [np.diff(np.append(np.arange(0, len(one), stride), len(one))) for one in starts]
    )
    order = np.argsort(marks, kind="stable")
    window = np.cumsum(rows[order]) // BLOCK_ROWS
    opens = np.flatnonzero(np.diff(window, prepend=-1))
    begins: list[int] = np.unique(marks[order][opens]).tolist()
    return begins
