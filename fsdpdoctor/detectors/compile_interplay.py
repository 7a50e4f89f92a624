"""FD505: torch.compile and FSDP2's hooks get in each other's way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.judged_steps import all_units, counter_rows
from fsdpdoctor.detectors.remedies import compile_blocks
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count
from fsdpdoctor.schema import (
    COUNTER_GRAPH_BREAKS,
    COUNTER_RECOMPILES,
    Evidence,
)

# Warm-up compiles; a recompile in every tenth judged step is no warm-up. To be
# calibrated on the gallery.
RECOMPILES_PER_STEP = 0.1


@detector(
    "FD505",
    "compile-interplay",
    needs={Evidence.UNITS},
    needs_any={Evidence.COMPILE, Evidence.CONFIG},
)
def compile_interplay(m: Measures) -> Iterator[Finding]:
    """Compiled regions are broken by FSDP2's hooks, or compiled again and again.

    *Why it costs*: a model compiled after it was sharded breaks its graph at every
    unit's hooks, and runs the pieces with the host's overhead in between. Each
    recompilation stops a step for seconds.

    *What to try*: checkpointing, then `block.compile()`, then `fully_shard(block)`,
    block by block; mark changing dimensions as dynamic.

    *When it is wrong*: dynamic shapes compile a few times by right. Counters exist
    only where torch.compile was used.
    """
    around = [fqn for fqn, spec in all_units(m).items() if spec.compiled == "around"]
    if around:
        yield _around(m, around)
    if Evidence.COMPILE not in m.evidence:
        if not around:
            raise CannotTell("compilation was not watched", Evidence.COMPILE)
        return
    for counter, says in (
        (COUNTER_RECOMPILES, "recompilations"),
        (COUNTER_GRAPH_BREAKS, "graph breaks"),
    ):
        rate = _rate(m, counter)
        if rate >= RECOMPILES_PER_STEP:
            yield _counted(m, says, rate)


def _rate(m: Measures, counter: str) -> float:
    """What a counter rises by per judged step."""
    total, steps = 0, 0
    for rank in m.ranks:
        rows = counter_rows(rank, counter)
        if len(rows) > 1:
            total += int(rows.value.max() - rows.value.min())
            steps += int(rank.judged.sum())
    return total / steps if steps else 0.0


def _order(m: Measures) -> Advice:
    compiled = {spec.compiled for spec in all_units(m).values()}
    if "inside" in compiled and "around" not in compiled:
        return Advice(
            text="Blocks are compiled before they are sharded already: mark the "
            "dimensions that change as dynamic (torch._dynamo.mark_dynamic), and pad "
            "batches to few sizes.",
            memory_cost_bytes=0,
        )
    text = "Compile each block first, and shard it after."
    return replace(compile_blocks(text), memory_cost_bytes=0)


def _around(m: Measures, units: list[str]) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=f"{count(len(units), 'unit')} lie inside a compiled module: its graph "
        "breaks at their hooks",
        units=tuple(units),
        evidence={"compiled": "around"},
        advice=(_order(m),),
    )


def _counted(m: Measures, says: str, rate: float) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.MEDIUM,
        summary=f"{rate:.3g} {says} per step after warm-up",
        cost_ns_per_step=None,
        evidence={"per_step": round(rate, 4)},
        advice=(_order(m),),
    )
