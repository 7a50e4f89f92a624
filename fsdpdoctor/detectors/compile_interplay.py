"""FD505: torch.compile and FSDP2's hooks get in each other's way."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import CannotTell, detector
from fsdpdoctor.detectors.judged_steps import all_units, counter_rows
from fsdpdoctor.detectors.remedies import compile_blocks
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count, ms, percent
from fsdpdoctor.schema import (
    COUNTER_COMPILE_NS,
    COUNTER_GRAPH_BREAKS,
    COUNTER_RECOMPILES,
    GRAPH_BREAK_REASON,
    RECOMPILE_REASON,
    Evidence,
)
from fsdpdoctor.storage.json_value import replace

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

    *When it is wrong*: dynamic shapes compile a few times by right. A graph break
    that costs no recompilation costs the host a little in every pass, and is
    information. Counters exist only where torch.compile was used.
    """
    around = [fqn for fqn, spec in all_units(m).items() if spec.compiled == "around"]
    if around:
        yield _around(m, around)
    if Evidence.COMPILE not in m.evidence:
        if not around:
            raise CannotTell("compilation was not watched", Evidence.COMPILE)
        return
    rate = _rate(m, COUNTER_RECOMPILES)
    if rate >= RECOMPILES_PER_STEP:
        yield _recompiled(m, rate)
    breaks = _largest(m, COUNTER_GRAPH_BREAKS)
    rising = _rate(m, COUNTER_GRAPH_BREAKS)
    # Around units it is the hooks that break it, which is said; what compiles again
    # breaks again at the same place.
    if breaks and not around:
        yield _broken(m, breaks, rising)


def _rate(m: Measures, counter: str) -> float:
    """What a counter rises by per judged step."""
    total, steps = 0, 0
    for rank in m.ranks:
        rows = counter_rows(rank, counter)
        if len(rows) > 1:
            total += int(rows.value.max() - rows.value.min())
            steps += int(rank.judged.sum())
    return total / steps if steps else 0.0


def _largest(m: Measures, counter: str) -> int:
    """What a counter came to on the rank where it came highest, in any step."""
    return max(
        (
            int(value)
            for rank in m.ranks
            for name, value in zip(rank.counters.name, rank.counters.value, strict=True)
            if rank.name(int(name)) == counter
        ),
        default=0,
    )


def _reasons(m: Measures, start: str) -> dict[str, int]:
    """How often what was counted, by dynamo's reason, the most first."""
    found: dict[str, int] = {}
    for rank in m.ranks:
        for at, value in zip(rank.counters.name, rank.counters.value, strict=True):
            name = rank.name(int(at)) or ""
            if name.startswith(start):
                reason = name.removeprefix(start)
                found[reason] = max(found.get(reason, 0), int(value))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _compile_ns(m: Measures) -> int | None:
    """What compiling took per judged step; None: the record does not say.

    The counter stands at each step's end: a step has what it rose by since the one
    before, if that was recorded.
    """
    total, steps = 0, 0
    for rank in m.ranks:
        rows = rank.counters
        named = [rank.name(int(name)) == COUNTER_COMPILE_NS for name in rows.name]
        at = {
            int(step): int(value)
            for step, value, mine in zip(rows.step, rows.value, named, strict=True)
            if mine
        }
        for step in rank.judged_steps.tolist():
            if step in at and step - 1 in at:
                total += at[step] - at[step - 1]
                steps += 1
    return round(total / steps) if steps else None


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


def _recompiled(m: Measures, rate: float) -> Finding:
    cost_ns = _compile_ns(m)
    reasons = _reasons(m, RECOMPILE_REASON)
    first = next(iter(reasons), None)
    step_ns = float(m.step_ns.mean()) if len(m.step_ns) else 0.0
    took = ""
    if cost_ns and step_ns:
        took = f", which take {ms(cost_ns)} ({percent(cost_ns / step_ns)} of the step)"
    because = f"; dynamo says: {first}" if first else ""
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.HIGH if first else Confidence.MEDIUM,
        summary=f"{rate:.3g} recompilations per step after warm-up{took}{because}",
        cost_ns_per_step=cost_ns,
        evidence={"per_step": round(rate, 4), "reasons": dict(reasons)},
        advice=(_again(m, first),),
    )


def _again(m: Measures, reason: str | None) -> Advice:
    """By what no longer held: a plain number, or a shape."""
    if reason is not None and "==" in reason and "size" not in reason:
        return Advice(
            text="A plain number that changes is compiled in: keep it in a tensor (a "
            "buffer of the module), or read it outside compiled code.",
            memory_cost_bytes=0,
        )
    return _order(m)


def _broken(m: Measures, breaks: int, rising: float) -> Finding:
    reasons = _reasons(m, GRAPH_BREAK_REASON)
    because = f"; dynamo says: {next(iter(reasons))}" if reasons else ""
    often = rising >= RECOMPILES_PER_STEP
    still = f", {rising:.3g} more per step" if often else ", in every pass since"
    return Finding(
        severity=Severity.WARNING if often else Severity.INFO,
        confidence=Confidence.HIGH if reasons else Confidence.MEDIUM,
        summary=f"{count(breaks, 'graph break')} while compiling{still}: the pieces "
        f"run one by one, with Python in between{because}",
        evidence={
            "graph_breaks": breaks,
            "per_step": round(rising, 4),
            "reasons": dict(reasons),
        },
        advice=(
            Advice(
                text="Keep what breaks the graph (.item(), print, branches on values) "
                "out of compiled code: torch.where for a branch, and read numbers "
                "after the pass. torch.compile(..., fullgraph=True) raises at the line "
                "that breaks it.",
                memory_cost_bytes=0,
            ),
        ),
    )
