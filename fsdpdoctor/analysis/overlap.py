"""Classic overlap: communication, and how much of it ran under compute kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fsdpdoctor.intervals import (
    Int64s,
    Intervals,
    intersect,
    total_ns,
    union,
)
from fsdpdoctor.schema import (
    COLLECTIVE_KINDS,
    COMMUNICATION_LANES,
    DEVICE_WORK,
    NO_TIME,
    Kind,
    Lane,
    Spans,
    distinct,
    is_any,
)
from fsdpdoctor.storage.spill import BLOCK_ROWS, let_go

OVERLAP_KINDS = (*(kind.key for kind in COLLECTIVE_KINDS), "all")


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
        for kind, busy in _communication([_Track.of(spans)]).items()
    }


def overlap_of_capture(parts: Sequence[Spans]) -> Overlaps:
    """The same for a whole trace, in which kernels say when compute ran.

    Its parts are a rank's steps and what lies outside them.
    """
    tracks = [_Track.of(part) for part in parts]
    busy = _communication(tracks)
    edges = np.concatenate(list(busy.values()))
    covered = np.zeros(len(edges), dtype=np.int64)
    for stretches in _compute(tracks):
        covered += stretches.within(edges)
    let_go(*parts)
    ends = np.cumsum([len(one) for one in busy.values()]).tolist()
    return {
        kind: Overlap(
            communication_ns=total_ns(one),
            overlapped_ns=int(covered[end - len(one) : end].sum()),
        )
        for (kind, one), end in zip(busy.items(), ends, strict=True)
    }


class _Track(NamedTuple):
    """A part's spans, by start: nearly all are kernels of the compute lane."""

    start_ns: Int64s
    end_ns: Int64s
    others: npt.NDArray[np.intp]  # [O] which rows are something else, ascending
    kind: npt.NDArray[np.int8]  # [O] of the others
    lane: npt.NDArray[np.int8]  # [O]

    @classmethod
    def of(cls, spans: Spans) -> Self:
        kernels = is_any(spans.kind, Kind.KERNEL) & is_any(spans.lane, Lane.COMPUTE)
        start_ns, end_ns = spans.start_ns, spans.end_ns
        others = rows = np.flatnonzero(~kernels)
        if not (start_ns[1:] >= start_ns[:-1]).all():
            order = np.argsort(start_ns, kind="stable")
            start_ns, end_ns = start_ns[order], end_ns[order]
            others = np.flatnonzero(~kernels[order])
            rows = order[others]
        return cls(
            start_ns=start_ns,
            end_ns=end_ns,
            others=others,
            kind=spans.kind[rows],
            lane=spans.lane[rows],
        )

    def between(self, first: int, last: int) -> _Track:
        """Some of its rows."""
        others = slice(*np.searchsorted(self.others, (first, last)))
        return _Track(
            start_ns=self.start_ns[first:last],
            end_ns=self.end_ns[first:last],
            others=self.others[others] - first,
            kind=self.kind[others],
            lane=self.lane[others],
        )

    @property
    def idle(self) -> npt.NDArray[np.intp]:
        """The rows that are no compute."""
        return self.others[~is_any(self.kind, *DEVICE_WORK)]


def _communication(tracks: Sequence[_Track]) -> dict[str, Intervals]:
    """When communication of each kind was running, in the order of OVERLAP_KINDS."""
    kind = np.concatenate([track.kind for track in tracks])
    lane = np.concatenate([track.lane for track in tracks])
    start_ns = np.concatenate([track.start_ns[track.others] for track in tracks])
    end_ns = np.concatenate([track.end_ns[track.others] for track in tracks])
    found = {}
    for name in OVERLAP_KINDS:
        if name == "all":
            which = is_any(lane, *COMMUNICATION_LANES)
        else:
            which = kind == Kind[name.upper()]
        found[name] = union(start_ns[which], end_ns[which])
    return found


class _Stretches(NamedTuple):
    """Stretches of compute by start: they do not overlap, may touch, may be empty."""

    start_ns: Int64s
    end_ns: Int64s
    before_ns: Int64s  # compute in the stretches before each

    def within(self, a: Intervals) -> Int64s:
        """How much compute there was in each of some intervals."""
        time_ns = a.ravel()
        at = np.searchsorted(self.start_ns, time_ns, side="right") - 1
        inside = np.minimum(time_ns, self.end_ns[at]) - self.start_ns[at]
        until = np.where(at >= 0, self.before_ns[at] + inside, 0)
        return until[1::2] - until[::2]


def _compute(tracks: Sequence[_Track]) -> Iterator[_Stretches]:
    """When compute kernels ran, a window of the capture at a time.

    What a kernel adds is what lies after the end of all that began before it. So the
    kernels of a trace are never held together, nor their union.
    """
    begins = _windows([track.start_ns for track in tracks])
    reach = NO_TIME
    firsts = [0] * len(tracks)
    for end in (*begins[1:], None):
        lasts = [
            len(t.start_ns) if end is None else int(np.searchsorted(t.start_ns, end))
            for t in tracks
        ]
        found = [
            track.between(first, last)
            for track, first, last in zip(tracks, firsts, lasts, strict=True)
            if last > first
        ]
        firsts = lasts
        if found:
            stretches = _after(reach, found)
            reach = int(stretches.end_ns[-1])
            yield stretches


def _after(reach_ns: int, found: Sequence[_Track]) -> _Stretches:
    """What some spans add to compute that went on until a time. In place: a window's
    columns are the few that are made for each kernel.
    """
    starts = np.concatenate([one.start_ns for one in found])
    ends = np.concatenate([one.end_ns for one in found])
    begin = 0
    for one in found:
        ends[begin + one.idle] = NO_TIME
        begin += len(one.end_ns)
    if any(a.start_ns[-1] > b.start_ns[0] for a, b in itertools.pairwise(found)):
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    ends[0] = max(int(ends[0]), reach_ns)
    np.maximum.accumulate(ends, out=ends)  # until when anything was open
    starts[0] = max(int(starts[0]), reach_ns)
    np.maximum(starts[1:], ends[:-1], out=starts[1:])
    np.maximum(starts, ends, out=ends)
    length = ends - starts
    before = np.cumsum(length)
    before -= length
    return _Stretches(start_ns=starts, end_ns=ends, before_ns=before)


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
    begins: list[int] = distinct(marks[order][opens]).tolist()
    return begins
