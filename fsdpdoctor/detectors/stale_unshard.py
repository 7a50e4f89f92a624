"""FD303: a unit was gathered, and nothing used it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import by_model
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.detectors.base import CannotTell, detector, level
from fsdpdoctor.detectors.judged_steps import (
    all_units,
    per_step,
    place_of,
    recompute_seen,
    unit_sums,
)
from fsdpdoctor.detectors.remedies import (
    RECOMPUTE_REASON,
    clear_prefetch,
    present,
    without_reentrant,
)
from fsdpdoctor.finding import Advice, Confidence, Finding, Location, Severity
from fsdpdoctor.quantities import count, ms, percent, size
from fsdpdoctor.schema import (
    COUNTER_GATHERED,
    UNKNOWN,
    Evidence,
    Flag,
    Kind,
    Phase,
    UnitSpec,
    distinct,
    median,
)

# Once in a run can be an exception or the last step; once in most steps is a habit.
EVERY_STEP = 0.5

# As FD101: below it a fix is lost in the step's jitter.
WAITED_SHARE = 0.05

# As FD508: memory that sharding saves, as a share of the model's parameters.
KEPT_SHARE = 0.1


@detector(
    "FD303", "stale-unshard", needs={Evidence.UNITS, Evidence.STEPS, Evidence.WINDOWS}
)
def stale_unshard(m: Measures) -> Iterator[Finding]:
    """A unit was unsharded and resharded without a forward or backward of its own.

    Or it was gathered in backward, where FSDP2 prefetches what ran before: a frozen
    tower's last unit, or that of a pass without gradients. Or whole parameters that
    the script gathered, with `full_tensor()`, are still held as steps end.

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
    yield from _opened(m)
    yield from _dropped(m)
    yield from _kept(m)


def _opened(m: Measures) -> Iterator[Finding]:
    """Units that were waited for, held, and freed."""
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


@dataclass(slots=True)
class _Dropped:
    """Gathers of one unit that nobody waited for."""

    count: int = 0
    bytes: int = 0
    waited_ns: int = 0
    by: str | None = None  # whose backward prefetched it
    places: list[Location] = field(default_factory=list)


def _dropped(m: Measures) -> Iterator[Finding]:
    """Units that a backward's own prefetch gathers, and that have no backward then.

    FSDP2 prefetches what ran before in forward. Before the first unit that trains
    that is a frozen one, or the last one of a pass without gradients.
    """
    found: dict[str, _Dropped] = defaultdict(_Dropped)
    for rank in m.ranks:
        _add_dropped(rank, found)
    trained = unit_sums(m, "calls", Phase.BACKWARD)
    for frozen in (True, False):
        # An evaluation may be seldom: then it is told by the steps that have one.
        steps = len(m.step_ns) if frozen else _evaluating(m) or len(m.step_ns)
        names = [
            name
            for name, one in found.items()
            if frozen is not bool(trained.get(name)) and one.count >= EVERY_STEP * steps
        ]
        for mine in by_model(m, names):
            yield _dropped_finding(m, {name: found[name] for name in mine}, frozen)


def _evaluating(m: Measures) -> int:
    """Judged steps of all ranks in which units were gathered without gradients."""
    return sum(
        len(distinct(rows.step))
        for rank in m.ranks
        for rows in (rank.collectives.rows(rank.in_judged(rank.collectives.step)),)
        for rows in (rows.rows(rows.flags & Flag.NO_GRAD != 0),)
    )


def _add_dropped(rank: RankMeasures, found: dict[str, _Dropped]) -> None:
    gathers, stalls = rank.collectives, rank.stalls
    waited = np.zeros(len(gathers), dtype=np.int64)
    np.add.at(waited, stalls.collective, stalls.duration_ns)
    rows = rank.in_judged(gathers.step) & (gathers.kind == Kind.ALL_GATHER)
    rows &= (gathers.flags & Flag.NEVER_USED != 0) & (gathers.unit != UNKNOWN)
    rows &= gathers.flags & Flag.BACKWARD_PREFETCH != 0
    for at in np.flatnonzero(rows).tolist():
        one = found[rank.units[int(gathers.unit[at])].fqn]
        one.count += 1
        one.bytes = max(one.bytes, int(gathers.bytes[at]))
        one.waited_ns += int(waited[at])
        one.by = rank.unit_name(int(gathers.by_unit[at]))
        one.places.append(place_of(rank, gathers, at))


def _dropped_finding(m: Measures, mine: dict[str, _Dropped], frozen: bool) -> Finding:
    cost_ns = per_step(m, sum(one.waited_ns for one in mine.values()))
    share = cost_ns / float(m.step_ns.mean())
    wasted = sum(one.bytes for one in mine.values())
    by = next(iter(mine.values())).by or "a unit"
    specs = all_units(m)
    trains = any(specs[name].trainable_numel > 0 for name in mine)
    evaluating = _evaluating(m) > 0
    if not frozen and not evaluating and by in specs and _lists_none(specs[by]):
        why, text = _without_backward(by)
    else:
        why, text = _why_dropped(
            by, frozen=frozen, trains=trains, evaluating=evaluating
        )
    return Finding(
        severity=level(share, WAITED_SHARE),
        confidence=Confidence.HIGH,
        summary=f"{count(len(mine), 'unit')} ({size(wasted)}) gathered in backward for "
        f"nothing, {ms(cost_ns)} exposed: {why}",
        units=tuple(mine),
        phase="backward",
        ranks=tuple(sorted({p.rank for one in mine.values() for p in one.places})),
        cost_ns_per_step=cost_ns if m.stalls_known else None,
        cost_bytes=wasted,
        evidence={
            "gathers_per_step": {
                name: round(one.count / len(m.step_ns), 4) for name, one in mine.items()
            },
            "prefetched_by": by,
            "frozen": frozen,
        },
        advice=(
            (frozen and trains and without_reentrant(m))
            or Advice(text=text, memory_cost_bytes=0),
        ),
        places=tuple(p for one in mine.values() for p in one.places[:1])[:3],
    )


def _lists_none(spec: UnitSpec) -> bool:
    return spec.backward_prefetch is not None and not spec.backward_prefetch


def _without_backward(by: str) -> tuple[str, str]:
    """FSDP2's own order of backwards is that of all forwards with gradients before."""
    why = (
        f"the backward of {by} prefetches what ran before it in a forward with "
        "gradients that no backward followed"
    )
    text = (
        "A forward whose output is detached needs no gradients: run it under "
        "torch.no_grad(), which saves its activations. The one gather after it stays, "
        f"unless {by} has an explicit backward prefetch list that names only itself."
    )
    return why, text


def _why_dropped(
    by: str, *, frozen: bool, trains: bool, evaluating: bool
) -> tuple[str, str]:
    """Why a backward gathered for nothing, and what to do."""
    if not frozen and not evaluating:
        why = f"the backward of {by} prefetches what has no backward after it"
        text = (
            "Backward prefetch lists name units in the order in which their backwards "
            f"run; that of {by} does not."
        )
        return why, text
    once, which = (
        ("a step", "is frozen, without a backward of its own")
        if frozen
        else ("after such passes", "is of the pass without gradients that ran before")
    )
    if trains and frozen:
        which = "has no backward of its own"
    why = (
        f"the backward of {by} prefetches what ran before it in forward, which {which}"
    )
    text = (
        f"One gather {once}: it may stay. It goes where {by} has an explicit backward "
        "prefetch list that names only itself."
    )
    return why, text


def _kept(m: Measures) -> Iterator[Finding]:
    """Whole tensors that were gathered outside FSDP2 and outlive their step."""
    whole = sum(max(spec.param_bytes, 0) for spec in all_units(m).values())
    alive: dict[str, dict[int, int]] = defaultdict(dict)
    for rank in m.ranks:
        for where, sizes in _alive_at_ends(rank).items():
            steps = [sizes.get(step, 0) for step in rank.judged_steps.tolist()]
            alive[where][rank.rank] = int(median(steps))
    for where, by_rank in alive.items():
        most = max(by_rank.values())
        if not whole or most / whole < KEPT_SHARE:
            continue
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.HIGH,
            summary=f"{size(most)} that were gathered at {where} stay alive from step "
            f"to step: {percent(most / whole)} of what all parameters take",
            ranks=tuple(rank for rank, bytes_ in by_rank.items() if bytes_),
            cost_bytes=most,
            evidence={
                "where": where,
                "bytes_by_rank": {str(r): bytes_ for r, bytes_ in by_rank.items()},
            },
            advice=(
                Advice(
                    text="Drop the whole tensors once they are read, or keep their "
                    "shards: full_tensor() gives a copy that lives as long as "
                    "somebody holds it.",
                    memory_cost_bytes=-most,
                ),
            ),
        )


def _alive_at_ends(rank: RankMeasures) -> dict[str, dict[int, int]]:
    """By place, the most that was alive as each step ended."""
    found: dict[str, dict[int, int]] = defaultdict(dict)
    rows = rank.counters
    for name, step, value in zip(rows.name, rows.step, rows.value, strict=True):
        text = rank.name(int(name)) or ""
        if text.startswith(f"{COUNTER_GATHERED}: "):
            sizes = found[text.removeprefix(f"{COUNTER_GATHERED}: ")]
            sizes[int(step)] = max(sizes.get(int(step), 0), int(value))
    return found


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
