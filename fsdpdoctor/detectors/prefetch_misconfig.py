"""FD105: the prefetch lists do not match the order in which units run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.changes.unit_tree import UnitTree
from fsdpdoctor.detectors.base import CannotTell, detector, level
from fsdpdoctor.detectors.judged_stalls import exposed
from fsdpdoctor.detectors.judged_steps import all_units, per_step, recompute_seen
from fsdpdoctor.detectors.reentrant import not_ahead
from fsdpdoctor.detectors.remedies import (
    RECOMPUTE_REASON,
    clear_prefetch,
    prefetch,
    present,
)
from fsdpdoctor.detectors.unit_order import backward_order, forward_order, unit_tree_of
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity, Value
from fsdpdoctor.quantities import count, ms, size
from fsdpdoctor.schema import UNKNOWN, Evidence, Flag, Kind, Phase

# As for FD101: what the skipped units wait decides between warning and critical.
CRITICAL_SHARE = 0.15

# A unit without a list is a hole only where this share of the units has one.
CHAIN_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """One entry of one list that does not fit the order."""

    owner: str
    target: str | None
    says: str
    waits: str | None = None  # the unit that runs next and was not prefetched


@detector(
    "FD105",
    "prefetch-misconfig",
    needs={Evidence.UNITS, Evidence.CONFIG, Evidence.PREFETCH},
)
def prefetch_misconfig(m: Measures) -> Iterator[Finding]:
    """A unit prefetches something else than what runs next.

    *Why it costs*: the unit that does run next is gathered when it is needed, fully
    exposed, while the prefetched one holds its memory early. A target that already
    ran, or never runs, is gathered for nothing and stays unsharded.

    *What to try*: rebuild the lists from the order in which the units ran; the code
    below does so for this run.

    Reentrant checkpoints run units in backward in an order of their own, which no
    prefetch knows: `use_reentrant=False`.

    *When it is wrong*: if the order changes from step to step (mixtures, skipped
    layers) no list is always right: drop the lists. A first-forward order is what
    is compared; the backward one is its reverse, parents before their children.
    """
    if not forward_order(m):
        raise CannotTell("no unit's forward was seen", Evidence.UNITS)
    for phase, order in (
        ("forward", forward_order(m)),
        ("backward", backward_order(m)),
    ):
        every = _lists(m, phase)
        for model in _models(m):
            units = {unit.fqn for unit in model.units}
            lists = {owner: every[owner] for owner in every if owner in units}
            problems = [p for one in model.trees for p in _of_root(one, lists, order)]
            if problems:
                mine = [unit for unit in order if unit in units]
                yield _finding(m, phase, mine, lists, problems)
    yield from not_ahead(m)


def _models(m: Measures) -> Iterator[UnitTree]:
    """Each model's units, whether they ran or not."""
    tree = unit_tree_of(m)
    for number in dict.fromkeys(unit.model for unit in tree.units):
        yield tree.of_model(number)


def _of_root(
    tree: UnitTree, lists: dict[str, list[str]], order: list[str]
) -> Iterator[_Problem]:
    """What the lists of one root's units get wrong, in the order in which all ran."""
    units = {unit.fqn for unit in tree.units}
    roots = {unit.fqn for unit in tree.units if unit.is_root}
    mine = {owner: lists[owner] for owner in lists if owner in units}
    ran = [unit for unit in order if unit in units]
    for problem in _problems(mine, ran, roots):
        elsewhere = problem.target in order and problem.target not in units
        says = "is another root's" if elsewhere else problem.says
        yield replace(problem, says=says)


def _lists(m: Measures, phase: str) -> dict[str, list[str]]:
    """Configured targets by unit, of the first rank, where there are any."""
    result: dict[str, list[str]] = {}
    units = m.units
    for spec in units:
        targets: tuple[int, ...] | None = getattr(spec, f"{phase}_prefetch")
        if targets:
            result[spec.fqn] = [units[at].fqn for at in targets if at < len(units)]
    return result


def _problems(
    lists: dict[str, list[str]], order: list[str], roots: set[str]
) -> Iterator[_Problem]:
    """Walk the order of one tree, as FSDP2 would, and see what each list gets wrong."""
    place = {fqn: at for at, fqn in enumerate(order)}
    chained = len(lists) >= CHAIN_SHARE * len([u for u in order if u not in roots])
    gathered: set[str] = set()
    for owner, targets in lists.items():
        if owner not in place and targets:
            yield _Problem(owner=owner, target=None, says="never runs itself")
    for at, owner in enumerate(order):
        targets = lists.get(owner, [])
        following = order[at + 1] if at + 1 < len(order) else None
        gathered |= {owner, *targets}
        waits = following if following not in gathered else None
        for which, target in enumerate(targets):
            if target in targets[:which]:
                yield _Problem(owner=owner, target=target, says="is listed twice")
            elif target not in place:
                yield _Problem(owner=owner, target=target, says="never runs")
            elif place[target] <= at:
                yield _Problem(
                    owner=owner, target=target, says="has run already", waits=waits
                )
            elif waits is not None:
                early = place[target] - at - 1
                says = f"runs {count(early, 'unit')} later than the next"
                yield _Problem(owner=owner, target=target, says=says, waits=waits)
        if not targets and chained and waits is not None and owner not in roots:
            yield _Problem(
                owner=owner, target=None, says="has no list in the chain", waits=waits
            )


def _finding(
    m: Measures,
    phase: str,
    order: list[str],
    lists: dict[str, list[str]],
    problems: list[_Problem],
) -> Finding:
    skipped = list(dict.fromkeys(p.waits for p in problems if p.waits))
    targets = {p.target for p in problems if p.target}
    specs = all_units(m)
    early_bytes = sum(max(specs[t].unsharded_bytes, 0) for t in targets)
    cost_ns = _cost(m, phase, skipped)
    step_ns = float(m.step_ns.mean()) if len(m.step_ns) else None
    severity = Severity.WARNING
    if cost_ns is not None and step_ns:
        severity = max(severity, level(cost_ns / step_ns, 0.0, CRITICAL_SHARE))
    worst = problems[0]
    wait = "" if cost_ns is None else f"; the skipped units wait {ms(cost_ns)} per step"
    return Finding(
        severity=severity,
        confidence=Confidence.HIGH,
        summary=f"the {phase} prefetch lists do not fit the order of the units in "
        f"{count(len(problems), 'place')}: {worst.owner} {_words(worst)}{wait}",
        units=tuple(dict.fromkeys([*skipped, *(p.owner for p in problems)])),
        phase=phase,
        cost_ns_per_step=cost_ns,
        cost_bytes=early_bytes,
        evidence={
            "order": list(order),
            "lists": dict[str, Value]({k: list[Value](v) for k, v in lists.items()}),
            "problems": [
                {
                    "unit": p.owner,
                    "target": p.target,
                    "problem": p.says,
                    "not_prefetched": p.waits,
                }
                for p in problems
            ],
            "held_early": size(early_bytes),
            "never_used_windows_per_step": per_step(m, _stale(m, targets)),
        },
        advice=_advice(m, phase, lists),
    )


def _words(problem: _Problem) -> str:
    if problem.target is None:
        text = problem.says
    else:
        text = f"prefetches {problem.target}, which {problem.says}"
    return text + (f", while {problem.waits} runs next" if problem.waits else "")


def _cost(m: Measures, phase: str, skipped: list[str]) -> int | None:
    """What the units that no list gathers in time wait, None: not measured."""
    if not m.stalls_known or not len(m.step_ns):
        return None
    which = Phase.FORWARD if phase == "forward" else Phase.BACKWARD
    return exposed(m).of(Kind.ALL_GATHER, phase=which).named(*skipped).ns_per_step


def _stale(m: Measures, targets: set[str]) -> int:
    """Windows of the targets that ended without a forward or backward in them."""
    return sum(_stale_of(rank, targets) for rank in m.ranks)


def _stale_of(rank: RankMeasures, targets: set[str]) -> int:
    rows = rank.windows.rows(
        rank.in_judged(rank.windows.step)
        & (rank.windows.flags & Flag.NEVER_USED != 0)
        & (rank.windows.unit != UNKNOWN)
    )
    return sum(rank.units[int(unit)].fqn in targets for unit in rows.unit)


def _advice(m: Measures, phase: str, lists: dict[str, list[str]]) -> tuple[Advice, ...]:
    """The right chain, or none where recomputation forbids one."""
    right = present(prefetch(m, phase, lists))
    if right:
        return right
    clear = present(clear_prefetch(m, phase, list(lists)))
    forbidden = phase == "forward" and recompute_seen(m)
    return (*clear, Advice(text=RECOMPUTE_REASON)) if forbidden else clear
