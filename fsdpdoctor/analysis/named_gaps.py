"""What ran in the time of a step that no span covers: the script's own lines.

[Note: Gaps] Every sample of the stack stands for the part of its gap that lies nearer
to it than to the gap's other samples. A gap that no sample hit is named by its edges:
the last pass or optimizer step that ended before it and the next that began, between
whose lines it lies. What has neither stays unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.intervals import Int64s, Intervals
from fsdpdoctor.schema import (
    UNKNOWN,
    Activity,
    StackSamples,
    StepRecord,
    Table,
    column,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps(Table):
    """One row per line of the script, or pair of lines, and step."""

    step: npt.NDArray[np.int64] = column("int64", UNKNOWN)
    activity: npt.NDArray[np.int8] = column("int8", 0)  # an Activity; EDGE: two lines
    site: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # name: "train.py:43"
    until: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # name: the other edge
    samples: npt.NDArray[np.int64] = column("int64", 0)
    ns: npt.NDArray[np.int64] = column("int64", 0)


_Key = tuple[int, int, int]
"""Activity, site and until."""


def named_gaps(record: StepRecord, gaps: Intervals) -> Gaps:
    """The lines that the time of some gaps goes to, the longest first."""
    stacks = record.stack_samples
    if not len(stacks) or not len(gaps):
        return Gaps.build(0)
    order = np.argsort(stacks.time_ns, kind="stable")
    stacks = stacks.rows(order)
    edge = stacks.activity == Activity.EDGE
    sampled, edges = stacks.rows(~edge), stacks.rows(edge)
    ns: dict[_Key, int] = {}
    counts: dict[_Key, int] = {}
    first = np.searchsorted(sampled.time_ns, gaps[:, 0])
    last = np.searchsorted(sampled.time_ns, gaps[:, 1])
    for (start, end), begin, stop in zip(
        gaps.tolist(), first.tolist(), last.tolist(), strict=True
    ):
        if begin == stop:
            key = _between(edges, start, end)
            if key is not None:
                ns[key] = ns.get(key, 0) + end - start
            continue
        shares = _shares(sampled.time_ns[begin:stop], start, end)
        for at, share in zip(range(begin, stop), shares.tolist(), strict=True):
            key = int(sampled.activity[at]), int(sampled.site[at]), UNKNOWN
            ns[key] = ns.get(key, 0) + share
            counts[key] = counts.get(key, 0) + 1
    rows = sorted(ns, key=lambda key: -ns[key])
    return Gaps.build(
        len(rows),
        step=record.step,
        activity=[key[0] for key in rows],
        site=[key[1] for key in rows],
        until=[key[2] for key in rows],
        samples=[counts.get(key, 0) for key in rows],
        ns=[ns[key] for key in rows],
    )


def _shares(times: Int64s, start: int, end: int) -> Int64s:
    """The part of a gap nearest to each of the samples in it. They sum to the gap."""
    middles = (times[1:] + times[:-1]) // 2
    return np.diff(np.concatenate(([start], middles, [end])))


def _between(edges: StackSamples, start: int, end: int) -> _Key | None:
    """The edges around a gap; None where there is neither."""
    # An edge is noted inside the pass that it is of, a little after the gap's end.
    before = int(np.searchsorted(edges.time_ns, (start + end) // 2)) - 1
    sites = [int(edges.site[at]) for at in (before, before + 1) if 0 <= at < len(edges)]
    if not sites:
        return None
    return int(Activity.EDGE), sites[0], sites[-1]
