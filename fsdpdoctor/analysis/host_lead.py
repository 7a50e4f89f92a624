"""How far the host was ahead of a device when a unit's pass ended there.

The recorder marks the end of a unit's forward on the compute stream, and FSDP2's
post-forward hook begins on the host in that moment; backward likewise. Where the
device gets to the mark as soon as it is enqueued, it had run out of work: that pass
took as long as the host needed to launch it, however much of it was compute.
"""

from __future__ import annotations

import numpy as np

from fsdpdoctor.analysis.timeline import Timeline
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.quantities import US
from fsdpdoctor.schema import NO_TIME, Flag, Hook, Kind, Spans

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
        for unit in np.unique(calls.unit[calls.kind == kind]):
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
    return hooks.rows(np.isin(hooks.name, ids))
