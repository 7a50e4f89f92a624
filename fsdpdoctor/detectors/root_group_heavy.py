"""FD203: the root unit holds the vocabulary tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.remedies import module
from fsdpdoctor.detectors.tables import EMBEDDING, all_units, exposed
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import MIB, percent, size
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind, ModelSpec, UnitSpec

CODE, NAME = "FD203", "root-group-heavy"

# `docs/detectors.md` D07: twice the median block. A root with a norm and a small head
# stays below it.
HEAVY = 2.0

# As for FD202: below this a collective is cheap whatever it is beside the others,
# and two more of them (C02) cost as much as they save.
LARGE_BYTES = 128 * MIB

HEAD = re.compile(r"(^|[._])(lm_head|head|output)([._]|$)")
"""Those of the tables that are used after the blocks."""


@detector(CODE, NAME, needs={Evidence.UNITS, Evidence.CONFIG})
def root_group_heavy(m: Measures) -> Iterator[Finding]:
    """The root unit holds embedding or head, and is far larger than a block.

    *Why it costs*: the root is gathered first and freed last. The head is gathered
    when only the embedding is needed, the embedding is kept until the head is done,
    and their reduce-scatter buffer is the largest of the run, at the end of
    backward.

    *What to try*: a unit for the embedding, and one for the last norm and the head
    together, which needs no resharding between forward and backward.

    *When it is wrong*: tied tables must stay in one unit (torch 2.13 refuses
    otherwise). On many ranks the two extra all-gathers cost latency. Under 128 MiB
    it is information.
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
    median = float(np.median(others))
    for spec in specs.values():
        tables = [p.fqn for p in spec.params if EMBEDDING.search(p.fqn)]
        if spec.is_root and tables and spec.unsharded_bytes >= HEAVY * median:
            yield _finding(m, spec, tables, median)


def _finding(m: Measures, root: UnitSpec, tables: list[str], median: float) -> Finding:
    stalls = exposed(m).of(Kind.ALL_GATHER).named(root.fqn)
    timed = m.stalls_known and len(m.step_ns) > 0
    live = _live_share(m, root.fqn)
    kept = "" if live is None else f", gathered for {percent(live)} of the step"
    model = m.ranks[0].header.model
    return Finding(
        code=CODE,
        name=NAME,
        severity=Severity.WARNING
        if root.unsharded_bytes >= LARGE_BYTES
        else Severity.INFO,
        confidence=Confidence.HIGH,
        summary=f"the root unit holds {', '.join(tables[:3])}: "
        f"{size(root.unsharded_bytes)}, {root.unsharded_bytes / median:.1f} times the "
        f"median unit{kept}",
        units=(root.fqn,),
        ranks=tuple(rank.rank for rank in m.ranks),
        cost_ns_per_step=stalls.ns_per_step if timed else None,
        cost_bytes=root.unsharded_bytes,
        evidence={
            "tables": list(tables),
            "root_bytes": root.unsharded_bytes,
            "median_unit_bytes": round(median),
            "live_share_of_step": None if live is None else round(live, 4),
        },
        advice=_advice(model, root, tables),
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
    model: ModelSpec | None, root: UnitSpec, tables: list[str]
) -> tuple[Advice, ...]:
    tied = {fqn for names in (model.tied if model else ()) for fqn in names}
    modules = _modules(tables)
    if not all(modules):
        return ()
    sizes = [_bytes(root, p.shape) for p in root.params if p.fqn in tables]
    saved = -(sum(sizes) - max(sizes))  # the tables are no longer alive all at once
    change: dict[str, object] | None = None
    rest = _modules([p.fqn for p in root.params if p.fqn not in tables])
    heads = [name for name in modules if HEAD.search(name)]
    first = [name for name in modules if name not in heads]
    if tied.intersection(tables):
        text = "The tables are tied: shard their modules together, as one unit."
        lines, saved = [f"fully_shard({_together(modules)})"], 0
    elif first and heads and all(rest):
        text = "Make units of the embedding, and of all that comes after the blocks."
        last = _together([*rest, *heads])
        lines = [f"fully_shard({_together(first)})"]
        lines += [f"fully_shard({last}, reshard_after_forward=False)"]
        change = {"split_root": True}
    else:
        text = "Make each table a unit, before the root."
        lines = [f"fully_shard({module(name)})" for name in modules]
    return (
        Advice(
            text=text,
            code="\n".join(
                [
                    "from torch.distributed.fsdp import fully_shard",
                    "",
                    "# Before the fully_shard(model) that is there already.",
                    *lines,
                ]
            ),
            memory_cost_bytes=saved,
            change=change,
        ),
    )


def _modules(params: list[str]) -> list[str]:
    """The modules that hold some parameters; "" is the root itself."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in params))


def _together(names: list[str]) -> str:
    """One module, or a list of them: what one `fully_shard` call takes."""
    modules = ", ".join(module(name) for name in names)
    return f"[{modules}]" if len(names) > 1 else modules


def _bytes(root: UnitSpec, shape: tuple[int, ...]) -> int:
    """A parameter's part of the root's gathered bytes."""
    return round(root.unsharded_bytes * int(np.prod(shape)) / max(root.numel, 1))
