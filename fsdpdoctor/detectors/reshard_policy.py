"""FD301: resharding after forward costs more than it saves, or too little."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.changes.code import MODEL, on_roots
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.judged_stalls import exposed
from fsdpdoctor.detectors.judged_steps import (
    all_units,
    few_steps,
    per_step,
    place_of,
    unit_sums,
)
from fsdpdoctor.detectors.remedies import (
    has,
    keep_unsharded,
    needs_torch,
    plan_advice,
    present,
    several_models,
)
from fsdpdoctor.detectors.unit_order import unit_tree_of
from fsdpdoctor.finding import Advice, Confidence, Finding, Location, Severity
from fsdpdoctor.quantities import count, ms, percent, size
from fsdpdoctor.schema import UNKNOWN, Evidence, Flag, Kind, Phase, UnitSpec

# `docs/detectors.md` D08: below 70 % of the device's memory there is room to keep units
# gathered, above 90 % there is none to spare.
ROOMY, FULL = 0.70, 0.90

# D08: the backward's gathers must be worth the memory.
EXPOSED_SHARE = 0.05

# D08: forwards without a backward gather the same weights every time; from this
# many per training forward it is no evaluation between steps.
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
    `reshard()` after an evaluation.

    *When it is wrong*: the peak of a short run may not be the peak of a long one.
    Where the device's memory is not known (CPU) the headroom is not either, and
    the finding is information.
    """
    specs = all_units(m)
    if all(spec.reshard_after_forward is None for spec in specs.values()):
        raise CannotTell("no unit's reshard policy was recorded", Evidence.CONFIG)
    used = _memory_share(m)
    yield from _gathered_again(m, specs, used)
    yield from _kept_too_long(m, specs, used)
    yield from _groups(m, specs)
    yield from _left_by_evaluation(m)
    yield from _inference(m)


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
    """Backward's gathers are exposed though there is room to keep the units."""
    if not m.stalls_known or not len(m.step_ns) or (used is not None and used > ROOMY):
        return
    again = [
        fqn
        for fqn, spec in specs.items()
        if spec.reshard_after_forward not in (False, None)
    ]
    stalls = exposed(m).of(Kind.ALL_GATHER, phase=Phase.BACKWARD).named(*again)
    cost_ns = stalls.ns_per_step
    share = cost_ns / float(m.step_ns.mean())
    if share < EXPOSED_SHARE:
        return
    names = list(stalls.by_unit())
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
    yield Finding(
        severity=Severity.INFO if used is None else Severity.WARNING,
        confidence=Confidence.LOW
        if used is None or few_steps(m)
        else Confidence.MEDIUM,
        summary=f"gathering {count(len(names), 'unit')} again in backward is exposed "
        f"for {ms(cost_ns)} per step ({percent(share)}), and {headroom}",
        units=tuple(names),
        phase="backward",
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
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        summary=f"the peak is {percent(used)} of the device while "
        f"{count(len(kept), 'unit')} stay gathered ({size(held)})",
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
            ),
        )
        if has(m, call) and not several_models(m)
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


def _left_by_evaluation(m: Measures) -> Iterator[Finding]:
    """Windows of a pass without gradients that were still open at the step's end."""
    units: dict[str, int] = {}
    places: list[Location] = []
    for rank in m.ranks:
        for at in _open_at_end(rank, Flag.NO_GRAD):
            windows = rank.windows
            name = rank.unit_name(int(windows.unit[at])) or "an unknown unit"
            units[name] = max(units.get(name, 0), int(windows.bytes[at]))
            places.append(place_of(rank, windows, at))
    if not units:
        return
    held = sum(max(b, 0) for b in units.values())
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=f"{count(len(units), 'unit')} ({size(held)}) stay gathered after a "
        "pass without gradients",
        units=tuple(units),
        ranks=tuple(sorted({p.rank for p in places})),
        cost_bytes=held,
        evidence={"held_bytes": held},
        advice=(
            Advice(
                text="Reshard by hand after evaluation.",
                code="\n".join(
                    [
                        f"{MODEL} After the evaluation:",
                        *on_roots(unit_tree_of(m), "reshard()"),
                    ]
                ),
                memory_cost_bytes=-held,
            ),
        )
        if has(m, "reshard") and not several_models(m)
        else (),
        places=tuple(sorted(places, key=lambda p: p.start_ns - p.end_ns)[:3]),
    )


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


def _inference(m: Measures) -> Iterator[Finding]:
    """Forwards without gradients gather the same weights again and again."""
    evaluation = unit_sums(m, "eval_all_gathers")
    training = unit_sums(m, "all_gathers", Phase.FORWARD)
    again = [
        fqn
        for fqn, gathers in evaluation.items()
        if gathers >= REPEATED * max(training.get(fqn, 0), 1)
        and gathers >= REPEATED * max(len(m.step_ns), 1)
    ]
    if not again:
        return
    repeats = per_step(m, sum(evaluation[fqn] for fqn in again))
    kept = keep_unsharded(m, again)
    if kept is not None:
        # A simulated step trains: it has no forwards without gradients.
        kept = replace(kept, change=None)
    yield Finding(
        severity=Severity.INFO,
        confidence=Confidence.MEDIUM,
        summary=f"{count(repeats, 'all-gather')} per step serve forwards without "
        "gradients, of weights that did not change in between",
        units=tuple(again),
        phase="forward",
        evidence={"all_gathers_per_step": repeats},
        advice=present(kept),
    )
