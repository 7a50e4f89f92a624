"""FD303: a unit was gathered, and nothing used it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.judged_steps import place_of, recompute_seen
from fsdpdoctor.detectors.remedies import (
    RECOMPUTE_REASON,
    clear_prefetch,
    present,
    without_reentrant,
)
from fsdpdoctor.finding import Advice, Confidence, Finding, Location, Severity
from fsdpdoctor.quantities import count, size
from fsdpdoctor.schema import UNKNOWN, Evidence, Flag, Kind

# Once in a run can be an exception or the last step; once in most steps is a habit.
EVERY_STEP = 0.5


@detector(
    "FD303", "stale-unshard", needs={Evidence.UNITS, Evidence.STEPS, Evidence.WINDOWS}
)
def stale_unshard(m: Measures) -> Iterator[Finding]:
    """A unit was unsharded and resharded without a forward or backward of its own.

    *Why it costs*: its bytes travelled and were held for nothing. In older torch a
    unit left so was not gathered again in the next step and computed with old
    weights.

    *What to try*: take the unit out of the prefetch lists that name it, or call
    `unshard()` only for what runs next.

    *When it is wrong*: code that reads a module's weight directly uses a unit that
    no forward of it shows. Where `unshard()` was called between micro-batches, that is
    what it was for (an export), and nothing is said. Units that their lists gather in
    the wrong order are reported by FD105 with the right lists.
    """
    if not len(m.step_ns):
        raise CannotTell("there is no whole step", Evidence.STEPS)
    counts: dict[str, int] = {}
    held: dict[str, int] = {}
    places: list[Location] = []
    for rank in m.ranks:
        windows = rank.windows
        stale = rank.in_judged(windows.step) & (windows.flags & Flag.NEVER_USED != 0)
        stale &= ~_read_between(rank)
        for at in np.flatnonzero(stale & (windows.unit != UNKNOWN)):
            name = rank.units[int(windows.unit[at])].fqn
            counts[name] = counts.get(name, 0) + 1
            held[name] = max(held.get(name, 0), int(windows.bytes[at]))
            places.append(place_of(rank, windows, at))
    names = [
        name for name, times in counts.items() if times >= EVERY_STEP * len(m.step_ns)
    ]
    if not names:
        return
    wasted = sum(held[name] for name in names)
    mine = [place for place in places if place.unit in names]
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        summary=f"{count(len(names), 'unit')} ({size(wasted)}) gathered and freed "
        "without being used, in most steps",
        units=tuple(names),
        ranks=tuple(sorted({place.rank for place in mine})),
        cost_bytes=wasted,
        evidence={
            "windows_per_step": {
                name: round(counts[name] / len(m.step_ns), 4) for name in names
            },
            "prefetched_by": {name: list(_owners(m, name)) for name in names},
        },
        advice=_advice(m, names),
        places=tuple(sorted(mine, key=lambda p: p.start_ns - p.end_ns)[:3]),
    )


def _read_between(rank: RankMeasures) -> npt.NDArray[np.bool_]:
    """[windows] the user's own unshards that no micro-batch runs under: an export or
    an evaluation reads the weights there, which no hook shows.
    """
    windows, passes = rank.windows, rank.host
    passes = passes.rows(passes.kind == Kind.MICRO_BATCH)
    by_hand = windows.flags & Flag.MANUAL != 0
    order = np.argsort(passes.start_ns, kind="stable")
    starts, ends = passes.start_ns[order], passes.end_ns[order]
    if not len(starts):
        return np.zeros(len(windows), dtype=np.bool_)
    # The last pass that began before the window's end: it overlaps, or none does.
    at = np.searchsorted(starts, windows.end_ns, side="left") - 1
    apart = (at < 0) | (ends[np.maximum(at, 0)] <= windows.start_ns)
    read: npt.NDArray[np.bool_] = by_hand & apart
    return read


def _owners(m: Measures, name: str) -> list[str]:
    """Units whose prefetch lists name a unit."""
    units = m.units
    return [
        spec.fqn
        for spec in units
        for at in (*(spec.forward_prefetch or ()), *(spec.backward_prefetch or ()))
        if at < len(units) and units[at].fqn == name
    ]


def _advice(m: Measures, names: list[str]) -> tuple[Advice, ...]:
    owners = list(dict.fromkeys(o for name in names for o in _owners(m, name)))
    cure = without_reentrant(m) if owners else None
    if cure is not None:
        return (cure,)  # the lists are right, they only run twice
    clear = present(clear_prefetch(m, "forward", owners))
    if not clear:
        return (Advice(text="Call unshard() only for units that run next."),)
    return (*clear, Advice(text=RECOMPUTE_REASON)) if recompute_seen(m) else clear
