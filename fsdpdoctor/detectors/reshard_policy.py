"""FD301: resharding after forward costs more than it saves, or too little."""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import (
    by_model,
    trained_models,
)
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.detectors.base import CannotTell, detector, level
from fsdpdoctor.detectors.embedding_backward import embedding_in_backward
from fsdpdoctor.detectors.judged_stalls import Exposed, exposed
from fsdpdoctor.detectors.judged_steps import (
    all_units,
    few_steps,
    judged_collectives,
    place_of,
)
from fsdpdoctor.detectors.passes_without_gradients import gathered_in_vain
from fsdpdoctor.detectors.remedies import (
    called_on_roots,
    has,
    keep_unsharded,
    needs_torch,
    plan_advice,
    present,
)
from fsdpdoctor.detectors.unit_order import tree_of_one
from fsdpdoctor.finding import Advice, Confidence, Finding, Location, Severity
from fsdpdoctor.quantities import count, ms, of_step, percent, size
from fsdpdoctor.schema import UNKNOWN, Evidence, Flag, Kind, Phase, UnitSpec, one_of

# `docs/detectors.md` D08: below 70 % of the device's memory there is room to keep units
# gathered, above 90 % there is none to spare.
ROOMY, FULL = 0.70, 0.90

# D08: the backward's gathers must be worth the memory.
EXPOSED_SHARE = 0.05

# Of the gathered bytes of all units: a root with little in it is left so by every
# evaluation, and may stay.
HELD_SHARE = 0.05

# D08: passes without gradients gather the same weights every time; from this many per
# training forward it is no evaluation between steps.
REPEATED = 4


@detector(
    "FD301", "reshard-policy", needs={Evidence.UNITS, Evidence.CONFIG, Evidence.WINDOWS}
)
def reshard_policy(m: Measures) -> Iterator[Finding]:
    """`reshard_after_forward` does not fit the memory at hand.

    *Why it costs*: a unit that reshards after forward is gathered a second time in
    backward. Where memory is free that time is wasted; where it is full, keeping
    units gathered costs retries or the run. An integer policy builds a process
    group per unit unless they share one, each with device memory of its own. A root
    is kept gathered after an evaluation, for a backward that never comes.

    *What to try*: keep all or the last units gathered; or reshard them again;
    `reshard()` after an evaluation; no gather in backward of a unit that is an
    embedding alone, which needs none.

    *When it is wrong*: the peak of a short run may not be the peak of a long one.
    Where the device's memory is not known (CPU) the headroom is not either, and
    the finding is information.
    """
    specs = all_units(m)
    if all(spec.reshard_after_forward is None for spec in specs.values()):
        raise CannotTell("no unit's reshard policy was recorded", Evidence.CONFIG)
    used = _memory_share(m)
    yield from _gathered_again(m, specs, used)
    yield from embedding_in_backward(m)
    yield from _kept_too_long(m, specs, used)
    yield from _groups(m, specs)
    repeated = list(gathered_in_vain(m, EXPOSED_SHARE, REPEATED))
    kept = {specs[one.units[0]].model for one in repeated if one.advice}
    # What is to be kept gathered for good is not left so by mistake.
    yield from _left_by_evaluation(m, kept - trained_models(m))
    yield from repeated


def _memory_share(m: Measures) -> float | None:
    """The largest peak as a share of its device; None where either is unknown."""
    shares = []
    for rank in m.ranks:
        peaks = rank.steps.peak_allocated_bytes
        if rank.header.device_bytes == UNKNOWN or not (peaks != UNKNOWN).any():
            return None
        shares.append(int(peaks.max()) / rank.header.device_bytes)
    return max(shares, default=None)


def _gathered_again(
    m: Measures, specs: dict[str, UnitSpec], used: float | None
) -> Iterator[Finding]:
    """Gathers that keeping the units would save are exposed, though there is room:
    those of backward, and of forwards after another forward of the same step.
    """
    if not m.stalls_known or not len(m.step_ns) or (used is not None and used > ROOMY):
        return
    again = [
        fqn
        for fqn, spec in specs.items()
        if spec.reshard_after_forward not in (False, None)
    ]
    gathers = exposed(m).of(Kind.ALL_GATHER).named(*again)
    backward = gathers.rows.phase == Phase.BACKWARD
    stalls = gathers.where(backward | _after_a_forward(m, gathers))
    if stalls.ns_per_step / float(m.step_ns.mean()) < EXPOSED_SHARE:
        return
    for names in by_model(m, list(stalls.by_unit())):
        yield _second_gather(m, stalls.named(*names), names, specs, used)


def _after_a_forward(m: Measures, gathers: Exposed) -> npt.NDArray[np.bool_]:
    """[stalls]: of a forward whose unit was gathered for a forward before it, with no
    backward between: as the stages of a pipeline run.
    """
    found = np.zeros(len(gathers.rows), dtype=bool)
    for rank, rows in judged_collectives(m):
        trained = rows.flags & (Flag.NO_GRAD | Flag.RECOMPUTE | Flag.NEVER_USED) == 0
        mine = rows.rows((rows.kind == Kind.ALL_GATHER) & trained)
        order = np.lexsort((mine.issued_ns, mine.unit, mine.step))
        forward = mine.phase[order] == Phase.FORWARD
        same = (np.diff(mine.step[order]) == 0) & (np.diff(mine.unit[order]) == 0)
        again = order[1:][forward[1:] & forward[:-1] & same]
        here = gathers.rows_of(rank.rank)
        found[here] = one_of(gathers.rows.issued_ns[here], mine.issued_ns[again])
    found &= gathers.rows.phase == Phase.FORWARD
    return found


def _second_gather(
    m: Measures,
    stalls: Exposed,
    names: list[str],
    specs: dict[str, UnitSpec],
    used: float | None,
) -> Finding:
    cost_ns = stalls.ns_per_step
    share = cost_ns / float(m.step_ns.mean())
    staged = bool((stalls.rows.phase == Phase.FORWARD).any())
    where = "in backward and in a step's later forwards" if staged else "in backward"
    kept = keep_unsharded(m, names)
    memory = kept.memory_cost_bytes if kept else None
    if used is not None and memory is not None:
        room = round((FULL - used) * min(r.header.device_bytes for r in m.ranks))
        if memory > room:
            kept = keep_unsharded(m, _last_that_fit(m, names, specs, room))
    headroom = (
        "the headroom is not known"
        if used is None
        else f"the peak is {percent(used)} of the device"
    )
    return Finding(
        severity=Severity.INFO if used is None else Severity.WARNING,
        confidence=Confidence.LOW
        if used is None or few_steps(m)
        else Confidence.MEDIUM,
        summary=f"gathering {count(len(names), 'unit')} again {where} is exposed "
        f"for {ms(cost_ns)} per step ({of_step(share)}), and {headroom}",
        units=tuple(names),
        phase=None if staged else "backward",
        ranks=stalls.ranks(),
        cost_ns_per_step=cost_ns,
        cost_bytes=memory,
        evidence={
            "peak_share_of_device": None if used is None else round(used, 4),
            "exposed_ns": cost_ns,
            "bytes_to_keep_all": memory,
        },
        advice=present(kept),
        places=stalls.places(),
    )


def _last_that_fit(
    m: Measures, names: list[str], specs: dict[str, UnitSpec], room: int
) -> list[str]:
    """The last units of forward, as many as there is room for: they are kept
    shortest.
    """
    order = [rank for rank in m.ranks if rank.first_forward]
    if not order:
        return []
    fitting: list[str] = []
    for at in reversed(order[0].first_forward):
        fqn = order[0].units[at].fqn
        held = specs[fqn].unsharded_bytes
        if fqn in names and held <= room:
            fitting.append(fqn)
            room -= held
    return fitting


def _kept_too_long(
    m: Measures, specs: dict[str, UnitSpec], used: float | None
) -> Iterator[Finding]:
    """Units are kept gathered on a device that is full."""
    kept = [
        spec
        for spec in specs.values()
        if spec.reshard_after_forward is False and not spec.is_root
    ]
    if used is None or used < FULL or not kept:
        return
    held = sum(max(spec.unsharded_bytes, 0) for spec in kept)
    names = [spec.fqn for spec in kept]
    call = "set_reshard_after_forward"
    tree = tree_of_one(m, names)
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        summary=f"the peak is {percent(used)} of the device while "
        f"{_stay(len(kept))} gathered ({size(held)})",
        units=tuple(names),
        cost_bytes=held,
        evidence={"peak_share_of_device": round(used, 4), "kept_bytes": held},
        advice=(
            plan_advice(
                m,
                f"Reshard them after forward{needs_torch(m, call)}; each is "
                "gathered once more in backward.",
                {"reshard_after_forward": dict.fromkeys(names, True)},
                memory_cost_bytes=-held,
                of=tree,
            ),
        )
        if has(m, call) and tree is not None
        else (),
    )


def _groups(m: Measures, specs: dict[str, UnitSpec]) -> Iterator[Finding]:
    """An integer policy with more process groups than meshes."""
    header = m.ranks[0].header
    used = {
        spec.post_forward_group
        for spec in specs.values()
        if 0 <= spec.post_forward_group < len(header.groups)
    }
    distinct = {header.groups[at].ranks for at in used}
    if len(used) <= max(len(distinct), 1):
        return
    names = [spec.fqn for spec in specs.values() if spec.post_forward_group in used]
    yield Finding(
        severity=Severity.INFO if header.device == "cpu" else Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=f"an integer reshard_after_forward made {len(used)} process groups "
        f"over {count(len(distinct), 'set')} of ranks; each holds memory of its own",
        units=tuple(names),
        evidence={"groups": len(used), "sets_of_ranks": len(distinct)},
        advice=(
            Advice(
                text="Use True or False, or shard on a mesh whose last dimension is "
                "that integer, so that units share its group.",
            ),
        ),
    )


def _left_by_evaluation(m: Measures, for_good: Set[int]) -> Iterator[Finding]:
    """Windows of a pass without gradients that were still open at the step's end."""
    units: dict[str, int] = {}
    places: list[Location] = []
    for rank in m.ranks:
        for at in _open_at_end(rank, Flag.NO_GRAD):
            windows = rank.windows
            name = rank.unit_name(int(windows.unit[at])) or "an unknown unit"
            units[name] = max(units.get(name, 0), int(windows.bytes[at]))
            places.append(place_of(rank, windows, at))
    specs = all_units(m)
    if all(name in specs and specs[name].model in for_good for name in units):
        return
    held = sum(max(b, 0) for b in units.values())
    every = sum(max(spec.unsharded_bytes, 0) for spec in specs.values())
    tree = tree_of_one(m, units)
    yield Finding(
        severity=level(held / max(every, 1), HELD_SHARE),
        confidence=Confidence.MEDIUM,
        summary=f"{_stay(len(units))} gathered ({size(held)}) after a pass without "
        "gradients",
        units=tuple(units),
        ranks=tuple(sorted({p.rank for p in places})),
        cost_bytes=held,
        evidence={"held_bytes": held},
        advice=(
            Advice(
                text="Reshard by hand after evaluation.",
                code=called_on_roots(tree, "After the evaluation:", "reshard()"),
                memory_cost_bytes=-held,
            ),
        )
        if has(m, "reshard") and tree is not None
        else (),
        places=tuple(sorted(places, key=lambda p: p.start_ns - p.end_ns)[:3]),
    )


def _stay(number: int) -> str:
    return f"{count(number, 'unit')} {'stays' if number == 1 else 'stay'}"


def _open_at_end(rank: RankMeasures, flag: Flag) -> list[int]:
    """Rows of windows with a flag that reach their step's end."""
    windows = rank.windows
    end_of = dict(
        zip(rank.steps.step.tolist(), rank.steps.end_ns.tolist(), strict=True)
    )
    return [
        int(at)
        for at in np.flatnonzero(windows.flags & flag != 0)
        if windows.end_ns[at]
        >= end_of.get(int(windows.step[at]), windows.end_ns[at] + 1)
    ]
