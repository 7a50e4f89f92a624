"""FD108: gradients were reduced in every micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import by_model
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.timeline import Collectives
from fsdpdoctor.changes.code import sync_on_last
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.unit_tree import UnitTree
from fsdpdoctor.detectors.base import CannotTell, detector, level
from fsdpdoctor.detectors.judged_stalls import Exposed, exposed
from fsdpdoctor.detectors.judged_steps import (
    NO_ROWS,
    all_units,
    counter_rows,
    judged_collectives,
    per_step,
    rows_by_step,
    unit_sums,
)
from fsdpdoctor.detectors.left_over import left_over
from fsdpdoctor.detectors.remedies import has, needs_torch, plan_advice
from fsdpdoctor.detectors.unit_order import tree_of_one
from fsdpdoctor.finding import Advice, Confidence, Finding
from fsdpdoctor.quantities import count, ms, of_step
from fsdpdoctor.schema import (
    COUNTER_GRADIENTS_TAKEN,
    ITEMSIZE,
    UNKNOWN,
    Evidence,
    Kind,
    distinct,
    median,
    one_of,
)

# `docs/detectors.md` D10: hidden reductions are better kept, for they save memory.
WARNING_SHARE, CRITICAL_SHARE = 0.03, 0.15

# A unit counts as reduced in every micro-batch from this share of them: a step in
# which one was skipped (an overflow) should not hide the habit.
EVERY = 0.9


@detector(
    "FD108",
    "accumulation-comm",
    needs={Evidence.STEPS, Evidence.MICRO_BATCHES, Evidence.COLLECTIVES},
)
def accumulation_comm(m: Measures) -> Iterator[Finding]:
    """Gradients were reduced in every micro-batch of an accumulated step.

    Or in one before the last: then what the last ones add is left out of the
    optimizer's step, without an error, and used in the next.

    *Why it costs*: one reduce-scatter (and all-reduce) per unit and optimizer step
    is enough; M micro-batches send M times the bytes and wait M times.

    *What to try*: with HSDP first the all-reduce only (it needs no memory), then
    the reduce-scatter too: unsharded gradients then stay on each rank until the
    last micro-batch.

    *When it is wrong*: if memory is tight and the reductions are hidden, keep
    them: it is reported only where they are exposed, or cross hosts. Pipeline
    schedules reduce by their own rules.
    """
    batches = _micro_batches(m)
    accumulated = batches // _turns(m)
    if accumulated < 2:
        return
    if accumulated == batches:  # else other gradients are used in between
        yield from left_over(m, batches)
    scatters = _every_time(m, "reduce_scatters", batches)
    reduces = _every_time(m, "all_reduces", batches)
    names = [fqn for fqn in all_units(m) if fqn in scatters or fqn in reduces]
    if not names:
        return
    again = {Kind.REDUCE_SCATTER: scatters, Kind.ALL_REDUCE: reduces}
    stalls = exposed(m).of_units(again)
    cost_ns = stalls.ns_per_step if m.stalls_known else None
    step_ns = float(m.step_ns.mean())
    hosts = _hosts_crossed(m, again)
    share = 0.0 if cost_ns is None else cost_ns / step_ns
    if share < WARNING_SHARE and hosts < 2:
        return
    wait = "" if cost_ns is None else f", {ms(cost_ns)} ({of_step(share)}) exposed"
    yield Finding(
        severity=level(max(share, WARNING_SHARE), WARNING_SHARE, CRITICAL_SHARE),
        confidence=Confidence.HIGH,
        summary=f"gradients of {count(len(names), 'unit')} are reduced in each of "
        f"{accumulated} micro-batches, once per step is enough{wait}",
        units=tuple(names),
        phase="backward",
        cost_ns_per_step=_avoidable(stalls, accumulated, cost_ns),
        cost_bytes=_bytes(m, accumulated, again),
        evidence={
            "micro_batches": accumulated,
            "reduce_scatters_per_step": round(
                sum(unit_sums(m, "reduce_scatters").values()) / len(m.step_ns), 4
            ),
            "all_reduces_per_step": round(
                sum(unit_sums(m, "all_reduces").values()) / len(m.step_ns), 4
            ),
            "exposed_ns": cost_ns,
            "hosts": hosts,
        },
        advice=tuple(_advice(m, accumulated, names, bool(reduces) and _matter(m))),
        places=stalls.places(),
    )


def _matter(m: Measures) -> bool:
    """Whether the all-reduces alone are worth a change: a flag that wins nothing that
    could be measured is no advice.
    """
    took = sum(
        int(rows.duration_ns[rows.kind == Kind.ALL_REDUCE].sum())
        for _, rows in judged_collectives(m)
    )
    return per_step(m, took) / float(m.step_ns.mean()) >= WARNING_SHARE


def _micro_batches(m: Measures) -> int:
    """Micro-batches per step, the same in every judged step."""
    counts = np.concatenate([r.steps.micro_batches[r.judged] for r in m.ranks])
    if not len(counts) or (counts == UNKNOWN).any():
        raise CannotTell("micro-batches were not counted", Evidence.MICRO_BATCHES)
    return int(median(counts))


def _turns(m: Measures) -> int:
    """How often gradients are used in a step, each time after micro-batches of their
    own: by optimizers, or by what takes them before an optimizer steps, as a closure
    that is called again does, and a second look at the weights. They must have been
    reduced each time.
    """
    turns: list[int] = []
    for rank in m.ranks:
        host = rank.host.rows(
            one_of(rank.host.kind, (Kind.OPTIMIZER, Kind.MICRO_BATCH))
        )
        rows = rows_by_step(host.step)
        taken = Counter(counter_rows(rank, COUNTER_GRADIENTS_TAKEN).step.tolist())
        for step in rank.judged_steps.tolist():
            here = host.rows(rows.get(step, NO_ROWS))
            # In the order of their ends: one inside backward ends before it.
            steps = (here.kind == Kind.OPTIMIZER)[
                np.argsort(here.end_ns, kind="stable")
            ]
            turns.append(int((steps[1:] & ~steps[:-1]).sum()) + taken[step])
    return max(round(median(turns)), 1) if turns else 1


def _every_time(m: Measures, name: str, accumulated: int) -> set[str]:
    """Units that were reduced in every micro-batch."""
    steps: Counter[str] = Counter()
    for rank in m.ranks:
        steps.update({spec.fqn: int(rank.judged.sum()) for spec in rank.units})
    return {
        fqn
        for fqn, total in unit_sums(m, name).items()
        if steps[fqn] and total >= EVERY * accumulated * steps[fqn]
    }


def _avoidable(stalls: Exposed, accumulated: int, cost_ns: int | None) -> int | None:
    """All but one micro-batch's share."""
    if cost_ns is None:
        return None
    return round(cost_ns * (accumulated - 1) / accumulated)


_Again = Mapping[Kind, Container[str]]
"""Kinds of reduction, and the units of each that are reduced every time."""


def _of_again(m: Measures, again: _Again) -> Iterator[tuple[RankMeasures, Collectives]]:
    """Each rank with those of its reductions that come every time."""
    for rank, rows in judged_collectives(m):
        mine = np.zeros(len(rows), dtype=bool)
        for kind, names in again.items():
            ids = [at for at, spec in enumerate(rank.units) if spec.fqn in names]
            mine |= (rows.kind == kind) & one_of(rows.unit, ids)
        yield rank, rows.rows(mine)


def _bytes(m: Measures, accumulated: int, again: _Again) -> int | None:
    """Bytes per step and rank that need not be sent; None: a trace may not tell."""
    total = 0
    for _, rows in _of_again(m, again):
        if (rows.bytes == UNKNOWN).any():
            return None
        total += int(rows.bytes.sum())
    return round(total / len(m.step_ns) * (accumulated - 1) / accumulated)


def _hosts_crossed(m: Measures, again: _Again) -> int:
    """How many hosts one of these reductions reaches; of all ranks where a group's
    ranks are not known.
    """
    host_of = {rank.rank: rank.header.host for rank in m.ranks}
    most = 0
    for rank, rows in _of_again(m, again):
        groups = rank.header.groups
        for at in distinct(rows.group).tolist():
            known = groups[at].ranks if 0 <= at < len(groups) else ()
            reached = {host_of.get(other) for other in known or host_of}
            most = max(most, len(reached - {None}))
    return most


def _unsharded_gradients(m: Measures, names: list[str]) -> int | None:
    """What whole gradients of units take; None: their sizes are not known."""
    specs, total = all_units(m), 0
    for name in names:
        spec = specs[name]
        if spec.trainable_numel == UNKNOWN:
            return None
        dtype = spec.reduce_dtype or spec.param_dtype or spec.orig_dtype or "float32"
        total += spec.trainable_numel * ITEMSIZE.get(dtype, 4)
    return total


def _advice(
    m: Measures, accumulated: int, names: list[str], hybrid: bool
) -> Iterator[Advice]:
    """Of each model of several its own, which is told apart by its name."""
    for mine in by_model(m, names):
        tree = tree_of_one(m, mine)
        if tree is not None:
            yield from _of_model(m, tree, accumulated, mine, hybrid)


def _of_model(
    m: Measures, tree: UnitTree, accumulated: int, names: list[str], hybrid: bool
) -> Iterator[Advice]:
    memory = _unsharded_gradients(m, names)
    if hybrid and has(m, "set_requires_all_reduce"):
        lines = sync_on_last(tree, f"={accumulated}", "set_requires_all_reduce(last)")
        yield Advice(
            text="All-reduce over replicas once per step"
            f"{needs_torch(m, 'set_requires_all_reduce')}; gradients stay sharded.",
            code="\n".join(lines),
            memory_cost_bytes=0,
        )
    if has(m, "set_requires_gradient_sync"):
        yield plan_advice(
            m,
            "Reduce gradients once per step"
            f"{needs_torch(m, 'set_requires_gradient_sync')}; unsharded gradients "
            "stay on every rank until then.",
            {"accumulation": "last"},
            told=Plan(accumulation="last", micro_batches=accumulated),
            memory_cost_bytes=memory,
            of=tree,
        )
