"""FD203: the root unit holds the vocabulary tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.changes.unit_tree import below, is_embedding, is_head
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.judged_stalls import exposed
from fsdpdoctor.detectors.judged_steps import all_units
from fsdpdoctor.detectors.remedies import plan_advice, several_models
from fsdpdoctor.detectors.unit_order import unit_tree_of
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import MIB, percent, size
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind, ModelSpec, UnitSpec, median

# `docs/detectors.md` D07: twice the median block. A root with a norm and a small head
# stays below it.
HEAVY = 2.0

# A root as large as a block that is large itself is no fault: the tables of its own
# units would not be held all at once, which is memory and no time (C02).
AS_LARGE = 1.0

# As for FD202: below this a collective is cheap whatever it is beside the others,
# and two more of them (C02) cost as much as they save.
LARGE_BYTES = 128 * MIB


@detector("FD203", "root-group-heavy", needs={Evidence.UNITS, Evidence.CONFIG})
def root_group_heavy(m: Measures) -> Iterator[Finding]:
    """The root unit holds embedding or head, and is far larger than a block.

    *Why it costs*: the root is gathered first and freed last. The head is gathered
    when only the embedding is needed, the embedding is kept until the head is done,
    and their reduce-scatter buffer is the largest of the run, at the end of
    backward.

    *What to try*: a unit for the embedding, and one for the last norm and the head
    together, which needs no resharding between forward and backward.

    *When it is wrong*: tied tables must stay in one unit (torch 2.13 refuses
    otherwise). On many ranks the two extra all-gathers cost latency. Under 128 MiB, and
    under twice a block, it is information.
    """
    specs = all_units(m)
    others = [
        spec.unsharded_bytes
        for spec in specs.values()
        if not spec.is_root and spec.unsharded_bytes != UNKNOWN
    ]
    if any(spec.is_root and not spec.params for spec in specs.values()):
        raise CannotTell("the root's parameters were not recorded", Evidence.CONFIG)
    if not others:
        return  # FD201's: the root is the only unit
    usual = median(others)
    for spec in specs.values():
        tables = [p.fqn for p in spec.params if is_embedding(p.fqn) or is_head(p.fqn)]
        least = AS_LARGE if spec.unsharded_bytes >= LARGE_BYTES else HEAVY
        if spec.is_root and tables and spec.unsharded_bytes >= least * usual:
            yield _finding(m, spec, tables, usual)


def _finding(m: Measures, root: UnitSpec, tables: list[str], usual: float) -> Finding:
    heavy = root.unsharded_bytes >= HEAVY * usual
    stalls = exposed(m).of(Kind.ALL_GATHER).named(root.fqn)
    timed = m.stalls_known and len(m.step_ns) > 0
    live = _live_share(m, root.fqn)
    kept = "" if live is None else f", gathered for {percent(live)} of the step"
    model = m.ranks[0].header.model
    return Finding(
        severity=Severity.WARNING
        if heavy and root.unsharded_bytes >= LARGE_BYTES
        else Severity.INFO,
        confidence=Confidence.HIGH,
        summary=f"the root unit holds {', '.join(tables[:3])}: "
        f"{size(root.unsharded_bytes)}, {root.unsharded_bytes / usual:.1f} times the "
        f"median unit{kept}",
        units=(root.fqn,),
        cost_ns_per_step=stalls.ns_per_step if timed else None,
        cost_bytes=root.unsharded_bytes,
        evidence={
            "tables": list(tables),
            "root_bytes": root.unsharded_bytes,
            "median_unit_bytes": round(usual),
            "live_share_of_step": None if live is None else round(live, 4),
        },
        advice=_advice(m, model, root, tables),
        places=stalls.places(),
    )


def _live_share(m: Measures, fqn: str) -> float | None:
    """How much of the judged steps a unit was gathered; None: windows not known."""
    if Evidence.WINDOWS not in m.evidence or not len(m.step_ns):
        return None
    total = 0
    for rank in m.ranks:
        rows = rank.windows.rows(rank.in_judged(rank.windows.step))
        mine = [rank.units[u].fqn == fqn if u >= 0 else False for u in rows.unit]
        kept = rows.rows(np.array(mine, dtype=bool))
        total += int((kept.end_ns - kept.start_ns).sum())
    return min(total / int(m.step_ns.sum()), 1.0)


def _advice(
    m: Measures, model: ModelSpec | None, root: UnitSpec, tables: list[str]
) -> tuple[Advice, ...]:
    shared = [names for names in (model.tied if model else ()) if len(names) > 1]
    if any(set(names) & set(tables) for names in shared):
        return (
            Advice(
                text="The tables are tied, and what shares a weight must be one unit: "
                "the root is that unit, and nothing is won by another."
            ),
        )
    of_module = {p.fqn: p.fqn.rpartition(".")[0] for p in root.params}
    if not all(of_module[name] for name in tables):
        return ()
    if not any(p.trainable for p in root.params if p.fqn in tables):
        return (
            Advice(
                text="The tables are frozen: no gradient of them is reduced. Leave "
                "them out of sharding, or keep them gathered: FD503."
            ),
        )
    sizes = [_bytes(root, p.shape) for p in root.params if p.fqn in tables]
    saved = -(sum(sizes) - max(sizes))  # the tables are no longer alive all at once
    rest = [name for name in of_module if not is_embedding(name)]
    first = [name for name in of_module if is_embedding(name)]
    split = bool(first and rest and all(of_module.values()))
    if split and any(is_head(name) for name in rest):
        text = "Make units of the embedding, and of all that comes after the blocks."
        groups = [(first, True), (rest, False)]
    else:
        text = "Make each table a unit, before the root."
        groups = [([name], True) for name in tables]
        split = False
    if several_models(m):
        return (Advice(text=text, memory_cost_bytes=saved),)
    return (_as_units(m, root, text, groups, saved, split),)


def _as_units(
    m: Measures,
    root: UnitSpec,
    text: str,
    groups: list[tuple[list[str], bool]],
    saved: int,
    split: bool,
) -> Advice:
    """Units of some parameters' modules each, out of the root's."""
    tree = unit_tree_of(m)
    whole = tree.named(root.fqn)
    assert whole is not None
    new = [
        below(whole, ", ".join(_modules(names)), reshard=reshard)
        for names, reshard in groups
    ]
    return plan_advice(
        m,
        text,
        {"split_root": True},
        after=tree.with_units(new),
        memory_cost_bytes=saved,
        simulated=split,
    )


def _modules(params: list[str]) -> list[str]:
    """The modules that hold some parameters."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in params))


def _bytes(root: UnitSpec, shape: tuple[int, ...]) -> int:
    """A parameter's part of the root's gathered bytes."""
    return round(root.unsharded_bytes * int(np.prod(shape)) / max(root.numel, 1))
