"""FD108: gradients were reduced in every micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import CannotTell, detector, level
from fsdpdoctor.detectors.remedies import has, needs_torch
from fsdpdoctor.detectors.tables import Exposed, all_units, exposed, unit_sums
from fsdpdoctor.finding import Advice, Confidence, Finding
from fsdpdoctor.quantities import count, ms, percent
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind

CODE, NAME = "FD108", "accumulation-comm"

# `docs/detectors.md` D10: hidden reductions are better kept, for they save memory.
WARNING_SHARE, CRITICAL_SHARE = 0.03, 0.15

# A unit counts as reduced in every micro-batch from this share of them: a step in
# which one was skipped (an overflow) should not hide the habit.
EVERY = 0.9

ITEM_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


@detector(
    CODE, NAME, needs={Evidence.STEPS, Evidence.MICRO_BATCHES, Evidence.COLLECTIVES}
)
def accumulation_comm(m: Measures) -> Iterator[Finding]:
    """Gradients were reduced in every micro-batch of an accumulated step.

    *Why it costs*: one reduce-scatter (and all-reduce) per unit and optimizer step
    is enough; M micro-batches send M times the bytes and wait M times.

    *What to try*: with HSDP first the all-reduce only (it needs no memory), then
    the reduce-scatter too: unsharded gradients then stay on each rank until the
    last micro-batch.

    *When it is wrong*: if memory is tight and the reductions are hidden, keep
    them: it is reported only where they are exposed, or cross hosts. Pipeline
    schedules reduce by their own rules.
    """
    accumulated = _micro_batches(m)
    if accumulated < 2:
        return
    scatters = _every_time(m, "reduce_scatters", accumulated)
    reduces = _every_time(m, "all_reduces", accumulated)
    names = [fqn for fqn in all_units(m) if fqn in scatters or fqn in reduces]
    if not names:
        return
    stalls = exposed(m).of(Kind.REDUCE_SCATTER, Kind.ALL_REDUCE).named(*names)
    cost_ns = stalls.ns_per_step if m.stalls_known else None
    step_ns = float(m.step_ns.mean())
    hosts = {rank.header.host for rank in m.ranks} - {None}
    share = 0.0 if cost_ns is None else cost_ns / step_ns
    if share < WARNING_SHARE and len(hosts) < 2:
        return
    wait = "" if cost_ns is None else f", {ms(cost_ns)} ({percent(share)}) exposed"
    yield Finding(
        code=CODE,
        name=NAME,
        severity=level(max(share, WARNING_SHARE), WARNING_SHARE, CRITICAL_SHARE),
        confidence=Confidence.HIGH,
        summary=f"gradients of {count(len(names), 'unit')} are reduced in each of "
        f"{accumulated} micro-batches, once per step is enough{wait}",
        units=tuple(names),
        phase="backward",
        ranks=tuple(rank.rank for rank in m.ranks),
        cost_ns_per_step=_avoidable(stalls, accumulated, cost_ns),
        cost_bytes=_bytes(m, accumulated),
        evidence={
            "micro_batches": accumulated,
            "reduce_scatters_per_step": round(
                sum(unit_sums(m, "reduce_scatters").values()) / len(m.step_ns), 4
            ),
            "all_reduces_per_step": round(
                sum(unit_sums(m, "all_reduces").values()) / len(m.step_ns), 4
            ),
            "exposed_ns": cost_ns,
            "hosts": len(hosts),
        },
        advice=_advice(m, accumulated, names, bool(reduces)),
        places=stalls.places(),
    )


def _micro_batches(m: Measures) -> int:
    """Micro-batches per step, the same in every judged step."""
    counts = np.concatenate([r.steps.micro_batches[r.judged] for r in m.ranks])
    if not len(counts) or (counts == UNKNOWN).any():
        raise CannotTell("micro-batches were not counted", Evidence.MICRO_BATCHES)
    return int(np.median(counts))


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


def _bytes(m: Measures, accumulated: int) -> int:
    """Bytes per step and rank that need not be sent."""
    total = 0
    for rank in m.ranks:
        rows = rank.in_judged(rank.collectives.step) & np.isin(
            rank.collectives.kind, (Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)
        )
        total += int(rank.collectives.bytes[rows].clip(0).sum())
    return round(total / len(m.step_ns) * (accumulated - 1) / accumulated)


def _advice(
    m: Measures, accumulated: int, names: list[str], hybrid: bool
) -> tuple[Advice, ...]:
    specs = all_units(m)
    memory = 0
    for name in names:
        spec = specs[name]
        dtype = spec.reduce_dtype or spec.param_dtype or spec.orig_dtype or "float32"
        memory += max(spec.trainable_numel, 0) * ITEM_BYTES.get(dtype, 4)
    result: list[Advice] = []
    if hybrid and has(m, "set_requires_all_reduce"):
        result.append(
            Advice(
                text="All-reduce over replicas once per step"
                f"{needs_torch(m, 'set_requires_all_reduce')}; gradients stay sharded.",
                code=_switch("set_requires_all_reduce", accumulated),
                memory_cost_bytes=0,
            )
        )
    if has(m, "set_requires_gradient_sync"):
        result.append(
            Advice(
                text="Reduce gradients once per step"
                f"{needs_torch(m, 'set_requires_gradient_sync')}; unsharded gradients "
                "stay on every rank until then.",
                code=_switch("set_requires_gradient_sync", accumulated),
                memory_cost_bytes=memory,
                change={"accumulation": "last"},
            )
        )
    return tuple(result)


def _switch(call: str, accumulated: int) -> str:
    return "\n".join(
        [
            f"def sync_on_last(model, micro_batch, micro_batches={accumulated}):",
            '    """Call with the root module before each micro-batch\'s forward."""',
            f"    model.{call}(micro_batch == micro_batches - 1)",
        ]
    )
