"""FD107: a unit was gathered more often than its policy asks for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fsdpdoctor.detectors.base import CannotTell, detector, level
from fsdpdoctor.detectors.remedies import MODEL, has, listing, needs_torch
from fsdpdoctor.detectors.tables import PHASES, all_units, per_step
from fsdpdoctor.finding import Advice, Confidence, Finding, Place, Severity
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.measures import Measures
from fsdpdoctor.quantities import count, ms, size
from fsdpdoctor.rank_measures import RankMeasures
from fsdpdoctor.schema import UNKNOWN, Evidence, Flag, Kind, Phase
from fsdpdoctor.timeline import Collectives

CODE, NAME = "FD107", "duplicate-all-gather"

# A duplicate is a fact, so one is a warning; a tenth of all gathered bytes, or the
# exposed share that FD101 calls critical, makes it the first thing to change.
CRITICAL_BYTES_SHARE, CRITICAL_TIME_SHARE = 0.10, 0.15

WHY = {
    "recompute": "activations are recomputed in backward around this unit",
    "prefetch": "another unit's forward prefetch gathers it again",
    "loop": "it is called in a loop, and gathered for every call",
    "repeat": "it is gathered again after it was resharded",
}


@dataclass(slots=True)
class _Excess:
    """What one unit was gathered too often in one phase."""

    rows: int = 0
    bytes: int = 0
    exposed_ns: int = 0
    counted: int = 0
    expected: int = 0
    why: Counter[str] = field(default_factory=Counter)
    ranks: set[int] = field(default_factory=set)
    places: list[Place] = field(default_factory=list)


Key = tuple[str, int]
"""A unit's name and the phase whose gathers are counted."""


@detector(
    CODE,
    NAME,
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
    around the loop; or keep that one unit gathered.

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
        if mine:
            yield _finding(m, word, mine)


def _collect(rank: RankMeasures, found: dict[Key, _Excess]) -> None:
    """Add one rank's gathers beyond the expected ones."""
    gathers = rank.collectives
    of_training = (gathers.kind == Kind.ALL_GATHER) & (
        gathers.flags & Flag.NO_GRAD == 0
    )
    phase = np.where(
        # A gather of recomputation is needed by backward, whatever state it is in.
        gathers.flags & Flag.RECOMPUTE != 0,
        Phase.BACKWARD,
        gathers.phase,
    )
    exposed_ns = np.zeros(len(gathers), dtype=np.int64)
    np.add.at(exposed_ns, rank.stalls.collective, rank.stalls.duration_ns)
    for step in rank.judged_steps.tolist():
        times = rank.unit_times
        for unit in np.unique(times.unit[times.step == step]).tolist():
            here = of_training & (gathers.step == step) & (gathers.unit == unit)
            extra = _extra_rows(rank, step, unit, here, phase)
            for which in PHASES:
                entry = found[rank.units[unit].fqn, which]
                entry.counted += int((here & (phase == which)).sum())
                entry.expected += max(_expected(rank, step, unit, which), 0)
            for row in extra:
                _add(
                    found[rank.units[unit].fqn, int(phase[row])], rank, row, exposed_ns
                )


def _extra_rows(
    rank: RankMeasures, step: int, unit: int, here: np.ndarray, phase: np.ndarray
) -> list[int]:
    """The gathers of one unit and step that nothing asked for.

    A surplus in one phase that another phase lacks is an early gather, not a
    duplicate; and what nothing used is not counted here.
    """
    surplus: dict[int, int] = {}
    lack = 0
    for which in PHASES:
        expected = _expected(rank, step, unit, which)
        if expected == UNKNOWN:
            return []
        difference = int((here & (phase == which)).sum()) - expected
        surplus[which] = max(difference, 0)
        lack += max(-difference, 0)
    windows = rank.windows
    unused = int(
        (
            (windows.step == step)
            & (windows.unit == unit)
            & (windows.flags & Flag.NEVER_USED != 0)
        ).sum()
    )
    left = sum(surplus.values()) - lack - unused
    rows: list[int] = []
    for which in reversed(PHASES):
        take = min(surplus[which], max(left - len(rows), 0))
        rows += _later(rank.collectives, np.flatnonzero(here & (phase == which)))[:take]
    return rows


def _expected(rank: RankMeasures, step: int, unit: int, phase: int) -> int:
    """What the policy asks for; 0 in a phase in which the unit did nothing."""
    times = rank.unit_times
    row = (times.step == step) & (times.unit == unit) & (times.phase == phase)
    return int(times.expected_all_gathers[row].max()) if row.any() else 0


def _later(gathers: Collectives, rows: np.ndarray) -> list[int]:
    """Rows of one unit and phase, those that are not their micro-batch's first in
    front: they are the duplicates.
    """
    seen: Counter[int] = Counter()
    nth: list[tuple[int, int]] = []
    for row in rows.tolist():
        micro_batch = int(gathers.micro_batch[row])
        nth.append((-seen[micro_batch], row))
        seen[micro_batch] += 1
    return [row for _, row in sorted(nth)]


def _add(entry: _Excess, rank: RankMeasures, row: int, exposed_ns: Int64s) -> None:
    gathers = rank.collectives
    flags = int(gathers.flags[row])
    step, unit = int(gathers.step[row]), int(gathers.unit[row])
    entry.rows += 1
    entry.bytes += max(int(gathers.bytes[row]), 0)
    entry.exposed_ns += int(exposed_ns[row])
    entry.ranks.add(rank.rank)
    times = rank.unit_times
    calls = times.calls[(times.step == step) & (times.unit == unit)]
    passes = rank.steps.micro_batches[rank.steps.step == step]
    if flags & Flag.FORWARD_PREFETCH:
        entry.why["prefetch"] += 1
    elif flags & Flag.RECOMPUTE or (
        times.recomputes[(times.step == step) & (times.unit == unit)].any()
    ):
        entry.why["recompute"] += 1
    elif len(calls) and len(passes) and calls.max() > max(int(passes[0]), 1):
        entry.why["loop"] += 1
    else:
        entry.why["repeat"] += 1
    entry.places.append(
        Place(
            rank=rank.rank,
            step=step,
            start_ns=int(gathers.start_ns[row]),
            end_ns=int(gathers.end_ns[row]),
            unit=rank.units[unit].fqn,
        )
    )


def _finding(m: Measures, phase: str, mine: dict[str, _Excess]) -> Finding:
    names = sorted(mine, key=lambda unit: (-mine[unit].exposed_ns, -mine[unit].bytes))
    rows = sum(e.rows for e in mine.values())
    cost_ns = per_step(m, sum(e.exposed_ns for e in mine.values()))
    cost_bytes = per_step(m, sum(e.bytes for e in mine.values()))
    gathered = sum(
        int(
            r.collectives.bytes[
                r.in_judged(r.collectives.step)
                & (r.collectives.kind == Kind.ALL_GATHER)
            ]
            .clip(0)
            .sum()
        )
        for r in m.ranks
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
    extra = rows / len(m.step_ns)
    return Finding(
        code=CODE,
        name=NAME,
        severity=severity,
        confidence=Confidence.HIGH,
        summary=f"{extra:.3g} all-gathers per step in {phase} repeat what was "
        f"gathered already ({count(len(names), 'unit')}, {size(cost_bytes)}, "
        f"{ms(cost_ns)} exposed): {WHY[why]}",
        units=tuple(names),
        phase=phase,
        ranks=tuple(sorted(set().union(*(e.ranks for e in mine.values())))),
        cost_ns_per_step=cost_ns if m.stalls_known else None,
        cost_bytes=cost_bytes,
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


def _advice(m: Measures, why: str, names: list[str]) -> tuple[Advice, ...]:
    specs = all_units(m)
    kept_bytes = sum(max(specs[name].unsharded_bytes, 0) for name in names)
    result: list[Advice] = []
    if why == "prefetch" and has(m, "set_modules_to_forward_prefetch"):
        listed = [u.fqn for u in m.units if u.forward_prefetch]
        result.append(
            Advice(
                text="Clear the forward prefetch lists: recomputation runs them again.",
                code="\n".join(
                    [
                        MODEL,
                        listing("listed", listed),
                        "for name in listed:",
                        "    unit = model.get_submodule(name)",
                        "    unit.set_modules_to_forward_prefetch([])",
                    ]
                ),
                memory_cost_bytes=0,
            )
        )
    if why == "recompute":
        result.append(
            Advice(
                text="Checkpoint whole units from inside: checkpoint the block, then "
                "fully_shard() it, and make no units inside a checkpointed block.",
                memory_cost_bytes=0,
            )
        )
    call = "set_reshard_after_forward"
    if has(m, call):
        result.append(
            Advice(
                text="Or keep these units gathered from forward to backward"
                f"{needs_torch(m, call)}.",
                code="\n".join(
                    [
                        MODEL,
                        listing("keep", names),
                        "for name in keep:",
                        "    unit = model.get_submodule(name)",
                        "    unit.set_reshard_after_forward(False, recurse=False)",
                    ]
                ),
                memory_cost_bytes=kept_bytes,
            )
        )
    return tuple(result)
