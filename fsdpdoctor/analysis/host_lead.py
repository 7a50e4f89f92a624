"""How far the host was ahead of a device when a unit's pass ended there.

The recorder marks the end of a unit's forward on the compute stream, and FSDP2's
post-forward hook begins on the host in that moment; backward likewise. Where the
device gets to the mark as soon as it is enqueued, it had run out of work: that pass
took as long as the host needed to launch it, however much of it was compute.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.rank_tables import HeldUp
from fsdpdoctor.analysis.timeline import Collectives, Timeline
from fsdpdoctor.intervals import Int64s, covered_ns, union
from fsdpdoctor.quantities import US
from fsdpdoctor.schema import (
    DEVICE_WORK,
    NO_TIME,
    UNKNOWN,
    Evidence,
    Flag,
    Hook,
    Kind,
    Lane,
    Spans,
    distinct,
    is_any,
    one_of,
)

CAUGHT_UP_NS = 50 * US
"""A launch takes 10 to 30 us (`docs/detectors.md` D02); the device's clock is known on
the host's axis to some 10 us."""

_HOOKS = {
    Kind.FORWARD: (Hook.PRE_FORWARD, Hook.POST_FORWARD),
    Kind.BACKWARD: (Hook.PRE_BACKWARD, Hook.POST_BACKWARD),
}
"""Between the two the host launches a unit's pass."""

_NOT_ENDED_THERE = Flag.ABORTED | Flag.END_ESTIMATED


def host_leads_ns(line: Timeline, calls: Spans) -> Int64s:
    """[len(calls)]: from the host's end of a unit's pass to the device's, NO_TIME
    where the two cannot be told to be the same pass, or where the host waited for
    the device within it: then the lead says nothing of launches.

    `calls` are the step's spans of kinds FORWARD and BACKWARD. On the host's clock
    nothing is known: host and device are one.
    """
    leads = np.full(len(calls), NO_TIME, dtype=np.int64)
    if line.data.header.clock == "host":
        return leads
    syncs = line.of(Kind.SYNC)
    for kind, (before, after) in _HOOKS.items():
        begun, ended = _hooks(line, before), _hooks(line, after)
        for unit in distinct(calls.unit[calls.kind == kind]):
            rows = np.flatnonzero((calls.kind == kind) & (calls.unit == unit))
            rows = rows[np.argsort(calls.end_ns[rows], kind="stable")]
            begin_ns = np.sort(begun.end_ns[begun.unit == unit])
            end_ns = np.sort(ended.start_ns[ended.unit == unit])
            if not len(rows) == len(begin_ns) == len(end_ns):
                continue
            waited = (syncs.start_ns < end_ns[:, None]) & (
                syncs.end_ns > begin_ns[:, None]
            )
            led = ~waited.any(axis=1)
            leads[rows[led]] = (calls.end_ns[rows] - end_ns)[led]
    leads[calls.flags & _NOT_ENDED_THERE != 0] = NO_TIME
    return leads


def _hooks(line: Timeline, name: str) -> Spans:
    ids = [at for at, known in enumerate(line.data.names) if known == name]
    hooks = line.of(Kind.HOOK)
    return hooks.rows(one_of(hooks.name, ids))


LEAST_GAP_NS = 20 * US
"""Between two kernels that follow each other lie some microseconds."""

AT_ONCE_NS = 10 * US
"""From the event that lets a kernel go to its start."""

COVERED = 0.8
"""Of a gap, by collectives: what they do not cover has another reason."""


def held_up(line: Timeline) -> HeldUp:
    """Gaps within a unit's pass in which a kernel stood still that was launched before,
    until another unit's collective began or ended.

    FSDP2 lets the compute lane wait at the borders of units alone, before it copies
    out, and after a reduction: within one there is nothing to wait for but a queue
    that streams share. Where something else ran in the gap (other communication,
    copies), it may be what was waited for, and nothing is said.
    """
    if Evidence.KERNELS not in line.data.evidence or not len(line.collectives):
        return HeldUp.build(0)
    spans = line.spans
    work = is_any(spans.kind, *DEVICE_WORK) & (spans.lane == Lane.COMPUTE)
    lane = np.flatnonzero(work)
    lane = lane[np.argsort(spans.start_ns[lane], kind="stable")]
    if len(lane) < 2:
        return HeldUp.build(0)
    idle_ns = np.maximum.accumulate(spans.end_ns[lane[:-1]])
    # Few kernels follow a gap: of the others, two columns are read.
    gap = np.flatnonzero(spans.start_ns[lane[1:]] - idle_ns >= LEAST_GAP_NS)
    before, after = spans.rows(lane[gap]), spans.rows(lane[gap + 1])
    idle_ns = idle_ns[gap]
    kernels = (before.kind == Kind.KERNEL) & (after.kind == Kind.KERNEL)
    one_pass = (before.unit == after.unit) & (before.phase == after.phase)
    launched = (after.issued_ns != NO_TIME) & (after.issued_ns <= idle_ns)
    gaps = HeldUp.build(
        len(after),
        step=line.step,
        start_ns=idle_ns,
        end_ns=after.start_ns,
        unit=after.unit,
        phase=after.phase,
    ).rows(kernels & one_pass & launched & (after.unit != UNKNOWN))
    if not len(gaps):
        return gaps
    gaps = gaps.rows(~_something_else(spans, gaps))
    return _by_collectives(line.collectives, gaps)


def _something_else(spans: Spans, gaps: HeldUp) -> npt.NDArray[np.bool_]:
    """[gaps] whether anything but FSDP2's own collectives ran in it."""
    other = (spans.lane == Lane.OTHER_COMM) | (spans.lane == Lane.COPY)
    rest = spans.rows(other)
    return covered_ns(gaps.start_ns, gaps.end_ns, union(rest.start_ns, rest.end_ns)) > 0


def _by_collectives(collectives: Collectives, gaps: HeldUp) -> HeldUp:
    """The gaps that other units' collectives fill, and that end as one of them begins
    or ends.
    """
    by = np.full(len(gaps), UNKNOWN, dtype=np.int32)
    edges = np.sort(np.concatenate((collectives.start_ns, collectives.end_ns)))
    at = np.searchsorted(edges, gaps.end_ns + AT_ONCE_NS, side="right") - 1
    near = (at >= 0) & (edges[np.maximum(at, 0)] >= gaps.end_ns - AT_ONCE_NS)
    filled = covered_ns(gaps.start_ns, gaps.end_ns, collectives.busy)
    near &= filled >= COVERED * gaps.duration_ns
    for row in np.flatnonzero(near).tolist():
        start, end = gaps.start_ns[row], gaps.end_ns[row]
        shared = np.minimum(collectives.end_ns, end) - np.maximum(
            collectives.start_ns, start
        )
        longest = int(np.argmax(shared))
        if collectives.unit[longest] not in (UNKNOWN, gaps.unit[row]):
            by[row] = collectives.unit[longest]
    return replace(gaps, by_unit=by).rows(by != UNKNOWN)
