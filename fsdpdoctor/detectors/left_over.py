"""Gradients of a step's last micro-batch that its optimizer never sees (FD108)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import by_model
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.changes.code import sync_on_last
from fsdpdoctor.detectors.judged_steps import NO_ROWS, rows_by_step
from fsdpdoctor.detectors.remedies import has, needs_torch
from fsdpdoctor.detectors.unit_order import tree_of_one
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count
from fsdpdoctor.schema import Kind, Phase

SETTING = {
    Kind.REDUCE_SCATTER: "set_requires_gradient_sync",
    Kind.ALL_REDUCE: "set_requires_all_reduce",
}

# Of the judged steps: one alone may be a last, short one.
MOST = 0.5


def left_over(m: Measures, micro_batches: int) -> Iterator[Finding]:
    """Units whose last micro-batch is not reduced, where one before it is.

    What it adds stays with the unit, and the first reduction of the next step takes
    it along: the optimizer uses it one step late, with weights that have changed.
    """
    for kind, setting in SETTING.items():
        steps: Counter[str] = Counter()
        for rank in m.ranks:
            steps.update(_left(rank, kind))
        judged = sum(int(rank.judged.sum()) for rank in m.ranks)
        names = [n for n, times in steps.items() if times > MOST * judged]
        for mine in by_model(m, names):
            yield _finding(m, micro_batches, kind, setting, mine)


def _left(rank: RankMeasures, kind: Kind) -> Iterator[str]:
    """The name of each unit, once per judged step in which it is so."""
    backwards = _backwards(rank)
    steps = rank.steps
    batches = dict(zip(steps.step.tolist(), steps.micro_batches.tolist(), strict=True))
    host = rank.host.rows(rank.host.kind == Kind.MICRO_BATCH)
    batch_rows = rows_by_step(host.step)
    reduced = rank.collectives.rows(rank.collectives.kind == kind)
    reduced_rows = rows_by_step(reduced.step)
    for step in rank.judged_steps.tolist():
        begun = host.start_ns[batch_rows.get(step, NO_ROWS)]
        if batches[step] < 2 or len(begun) != batches[step]:
            continue
        here = reduced.rows(reduced_rows.get(step, NO_ROWS))
        in_last = here.unit[here.issued_ns >= begun.max()]
        for at in np.setdiff1d(here.unit[here.unit >= 0], in_last).tolist():
            # A backward in each: the last one's had gradients to reduce.
            if backwards.get((step, at), 0) >= batches[step]:
                yield rank.units[at].fqn


def _backwards(rank: RankMeasures) -> Mapping[tuple[int, int], int]:
    times = rank.unit_times
    mine = times.phase == Phase.BACKWARD
    keys = zip(times.step[mine].tolist(), times.unit[mine].tolist(), strict=True)
    return dict(zip(keys, times.calls[mine].tolist(), strict=True))


def _finding(
    m: Measures, micro_batches: int, kind: Kind, setting: str, names: list[str]
) -> Finding:
    what = "reduced" if kind == Kind.REDUCE_SCATTER else "all-reduced over replicas"
    return Finding(
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        summary=f"gradients of {count(len(names), 'unit')} are {what} in a micro-batch "
        f"before the last of {micro_batches}: what comes after it is left out of the "
        "optimizer's step and mixed into the next one, so the model trains on "
        "gradients of old weights",
        units=tuple(names),
        phase="backward",
        evidence={"micro_batches": micro_batches, "setting": setting},
        advice=_advice(m, micro_batches, setting, names),
    )


def _advice(
    m: Measures, micro_batches: int, setting: str, names: list[str]
) -> tuple[Advice, ...]:
    tree = tree_of_one(m, names)
    if not has(m, setting) or tree is None:
        return ()
    lines = sync_on_last(tree, f"={micro_batches}", f"{setting}(last)")
    return (
        Advice(
            text=f"Reduce in the last micro-batch of each step{needs_torch(m, setting)}"
            ", the one right before the optimizer steps.",
            code="\n".join(lines),
            memory_cost_bytes=0,
        ),
    )
