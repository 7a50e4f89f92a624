"""FD107: a unit was gathered more often than its policy asks for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import by_model
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.detectors.base import CannotTell, detector, level
from fsdpdoctor.detectors.gather_counts import StepGathers, step_gathers
from fsdpdoctor.detectors.judged_steps import (
    PHASES,
    judged_collectives,
    per_step,
    place_of,
)
from fsdpdoctor.detectors.reentrant import reentrant
from fsdpdoctor.detectors.remedies import (
    clear_prefetch,
    keep_unsharded,
    present,
    without_reentrant,
)
from fsdpdoctor.finding import Advice, Confidence, Finding, Location, Severity
from fsdpdoctor.quantities import count, ms, size
from fsdpdoctor.schema import UNKNOWN, Evidence, Flag, Kind, Phase

# A duplicate is a fact, so one is a warning; a tenth of all gathered bytes, or the
# exposed share that FD101 calls critical, makes it the first thing to change.
CRITICAL_BYTES_SHARE, CRITICAL_TIME_SHARE = 0.10, 0.15

WHY = {
    "recompute": "activations are recomputed in backward around this unit",
    "prefetch": "another unit's forward prefetch gathers it again",
    "reentrant": "a reentrant checkpoint runs forward prefetch lists again in backward",
    "loop": "it is called in a loop, and gathered for every call",
    "backwards": "backward runs over it more than once for one forward, and each run "
    "gathers it",
    "repeat": "it is gathered again after it was resharded",
}


@dataclass(slots=True)
class _Excess:
    """What one unit was gathered too often in one phase."""

    rows: int = 0
    bytes: int = 0
    sized: bool = True  # else some are not in `bytes`
    exposed_ns: int = 0
    counted: int = 0
    expected: int = 0
    why: Counter[str] = field(default_factory=Counter)
    ranks: set[int] = field(default_factory=set)
    places: list[Location] = field(default_factory=list)


Key = tuple[str, int]
"""A unit's name and the phase whose gathers are counted."""


@detector(
    "FD107",
    "duplicate-all-gather",
    needs={Evidence.UNITS, Evidence.CONFIG, Evidence.WINDOWS, Evidence.COLLECTIVES},
)
def duplicate_all_gather(m: Measures) -> Iterator[Finding]:
    """A unit was gathered more often than its policy asks for.

    The policy asks for one all-gather per forward pass of the root, and one in
    backward where the unit reshards after forward. Counts are exact.

    *Why it costs*: the same bytes travel twice, mostly exposed, for a duplicate is
    seldom prefetched.

    *What to try*: put activation checkpointing inside the unit, around its forward,
    and not around several units or a part of one; drop forward prefetch lists
    where activations are recomputed; gather a unit that is called in a loop once
    around the loop; call backward once, of the sum of several losses; or keep that
    one unit gathered.

    *When it is wrong*: several forwards before one backward, evaluation passes and
    your own `unshard()` calls are counted as asked for. A gather that nothing used
    belongs to FD105 or FD303 and is left out.
    """
    if not any(len(rank.judged_steps) for rank in m.ranks):
        raise CannotTell("there is no whole step", Evidence.STEPS)
    if not any(
        (rank.unit_times.expected_all_gathers != UNKNOWN).any() for rank in m.ranks
    ):
        raise CannotTell("no unit's calls were seen", Evidence.UNITS)
    found: dict[Key, _Excess] = defaultdict(_Excess)
    for rank in m.ranks:
        _collect(rank, found)
    for phase, word in PHASES.items():
        mine = {unit: e for (unit, p), e in found.items() if p == phase and e.rows}
        for names in by_model(m, list(mine)):
            yield _finding(m, word, {name: mine[name] for name in names})


def _collect(rank: RankMeasures, found: dict[Key, _Excess]) -> None:
    """Add one rank's gathers beyond the expected ones."""
    exposed_ns = np.zeros(len(rank.collectives), dtype=np.int64)
    np.add.at(exposed_ns, rank.stalls.collective, rank.stalls.duration_ns)
    for here in step_gathers(rank):
        for unit in here.units:
            fqn = rank.units[unit].fqn
            for phase in PHASES:
                found[fqn, phase].counted += here.counted(unit, phase)
                found[fqn, phase].expected += max(here.wanted(unit, phase), 0)
            for phase, rows in here.duplicates(unit).items():
                for row in rows:
                    _add(found[fqn, phase], here, row, int(exposed_ns[row]))


def _add(entry: _Excess, here: StepGathers, row: int, exposed_ns: int) -> None:
    rank = here.rank
    gathers = rank.collectives
    flags, unit = int(gathers.flags[row]), int(gathers.unit[row])
    entry.rows += 1
    if gathers.bytes[row] == UNKNOWN:  # a trace may not tell
        entry.sized = False
    else:
        entry.bytes += int(gathers.bytes[row])
    entry.exposed_ns += exposed_ns
    entry.ranks.add(rank.rank)
    mine = here.times.unit == unit
    calls = here.times.calls[mine & (here.times.phase == Phase.FORWARD)]
    backwards = here.times.calls[mine & (here.times.phase == Phase.BACKWARD)]
    if flags & Flag.FORWARD_PREFETCH:
        entry.why["prefetch"] += 1
    elif flags & Flag.RECOMPUTE or here.times.recomputes[mine].any():
        entry.why["recompute"] += 1
    elif gathers.phase[row] == Phase.BACKWARD and backwards.sum() > calls.sum() > 0:
        entry.why["backwards"] += 1
    elif len(calls) and calls.max() > max(here.micro_batches, 1):
        entry.why["loop"] += 1
    else:
        entry.why["repeat"] += 1
    entry.places.append(place_of(rank, gathers, row))


def _finding(m: Measures, phase: str, mine: dict[str, _Excess]) -> Finding:
    names = sorted(mine, key=lambda unit: (-mine[unit].exposed_ns, -mine[unit].bytes))
    extra = sum(e.rows for e in mine.values()) / len(m.step_ns)
    cost_ns = per_step(m, sum(e.exposed_ns for e in mine.values()))
    cost_bytes = per_step(m, sum(e.bytes for e in mine.values()))
    gathered = sum(
        int(rows.bytes[rows.kind == Kind.ALL_GATHER].clip(0).sum())
        for _, rows in judged_collectives(m)
    )
    why = sum((e.why for e in mine.values()), Counter[str]()).most_common(1)[0][0]
    places = sorted(
        (p for e in mine.values() for p in e.places),
        key=lambda p: p.start_ns - p.end_ns,
    )
    share = cost_ns / float(m.step_ns.mean())
    bytes_share = cost_bytes / max(per_step(m, gathered), 1)
    severity = max(
        Severity.WARNING,
        level(share, 0.0, CRITICAL_TIME_SHARE),
        level(bytes_share, 0.0, CRITICAL_BYTES_SHARE),
    )
    sized = all(e.sized for e in mine.values())
    said = [count(len(names), "unit"), *([size(cost_bytes)] if sized else [])]
    said.append(f"{ms(cost_ns)} exposed")
    return Finding(
        severity=severity,
        confidence=Confidence.HIGH,
        summary=f"{extra:.3g} all-gathers per step in {phase} repeat what was "
        f"gathered already ({', '.join(said)}): {WHY[_cause(m, why)]}",
        units=tuple(names),
        phase=phase,
        ranks=tuple(sorted(set().union(*(e.ranks for e in mine.values())))),
        cost_ns_per_step=cost_ns if m.stalls_known else None,
        cost_bytes=cost_bytes if sized else None,
        evidence={
            "why": why,
            "duplicates_per_step": round(extra, 4),
            "units": [
                {
                    "unit": name,
                    "counted_per_step": round(mine[name].counted / len(m.step_ns), 4),
                    "expected_per_step": round(mine[name].expected / len(m.step_ns), 4),
                    "why": mine[name].why.most_common(1)[0][0],
                }
                for name in names
            ],
        },
        advice=_advice(m, why, names),
        places=tuple(places[:3]),
    )


def _cause(m: Measures, why: str) -> str:
    return "reentrant" if why == "prefetch" and reentrant(m) else why


def _advice(m: Measures, why: str, names: list[str]) -> tuple[Advice, ...]:
    if why == "backwards":
        return (
            Advice(
                text="Add the losses up, and call backward once: each call with "
                "retain_graph=True gathers and reduces all units anew.",
                memory_cost_bytes=0,
            ),
        )
    listed = [spec.fqn for spec in m.units if spec.forward_prefetch]
    cure = without_reentrant(m) if listed or why == "recompute" else None
    clear = None
    if why == "prefetch" and cure is None:
        clear = clear_prefetch(m, "forward", listed)
    inside = None
    if why == "recompute":
        inside = Advice(
            text="Checkpoint whole units from inside: checkpoint the block, then "
            "fully_shard() it, and make no units inside a checkpointed block.",
            memory_cost_bytes=0,
        )
    return present(cure, clear, inside, keep_unsharded(m, names))
