"""What the device did of the work that the host launched before, or between, moments.

Work lies in order of its start, and is not sorted by launch for this: it is counted
into the cells between the moments, a block at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from fsdpdoctor.importers.reader.trace_file import Int64s
from fsdpdoctor.schema import NO_TIME, Lane, Spans, distinct
from fsdpdoctor.storage.spill import blocks, let_go

_NEVER = np.iinfo(np.int64).max


class Launched(NamedTuple):
    """Some work on the compute lane: when it was launched, began and ended."""

    launched_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s


def on_compute_lane(spans: Spans, launched_ns: Int64s) -> Iterator[Launched]:
    """The work of the compute lane whose launch is known, block by block."""
    for block in blocks(len(spans)):
        launched = launched_ns[block]
        which = (spans.lane[block] == Lane.COMPUTE) & (launched != NO_TIME)
        yield Launched(
            launched_ns=launched[which],
            start_ns=spans.start_ns[block][which],
            end_ns=spans.end_ns[block][which],
        )
        let_go(spans)


def done_by(work: Iterable[Launched], moments_ns: Int64s) -> Int64s:
    """For each moment, when all that was launched before it was done; else NO_TIME."""
    bounds = distinct(moments_ns)
    done = np.full(len(bounds), NO_TIME, dtype=np.int64)
    for one in work:
        at = np.searchsorted(bounds, one.launched_ns, side="right")
        before = at < len(bounds)
        np.maximum.at(done, at[before], one.end_ns[before])
    done = np.maximum.accumulate(done)
    return done[np.searchsorted(bounds, moments_ns)]


class Ran(NamedTuple):
    """From when to when the work of some windows ran; NO_TIME where there is none."""

    start_ns: Int64s
    end_ns: Int64s


def ran_within(work: Iterable[Launched], start_ns: Int64s, end_ns: Int64s) -> Ran:
    """For each of N windows of the host, when what was launched in it ran."""
    bounds = distinct(np.concatenate((start_ns, end_ns)))
    first = np.full(len(bounds), _NEVER, dtype=np.int64)
    last = np.full(len(bounds), NO_TIME, dtype=np.int64)
    for one in work:
        at = np.searchsorted(bounds, one.launched_ns, side="right") - 1
        inside = at >= 0
        np.minimum.at(first, at[inside], one.start_ns[inside])
        np.maximum.at(last, at[inside], one.end_ns[inside])
    begins = np.searchsorted(bounds, start_ns).tolist()
    ends = np.searchsorted(bounds, end_ns).tolist()
    cells = list(zip(begins, ends, strict=True))
    starts = np.array(
        [first[a:b].min(initial=_NEVER) for a, b in cells], dtype=np.int64
    )
    return Ran(
        start_ns=np.where(starts == _NEVER, NO_TIME, starts),
        end_ns=np.array(
            [last[a:b].max(initial=NO_TIME) for a, b in cells], dtype=np.int64
        ),
    )
