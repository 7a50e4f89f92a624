"""Units that stayed gathered over the optimizer's step and were used then (FD504)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import trained_models
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.detectors.before_a_gpu import shard_ranks
from fsdpdoctor.detectors.judged_steps import all_units
from fsdpdoctor.detectors.remedies import model_comment
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.quantities import count
from fsdpdoctor.schema import UNKNOWN, Evidence, Flag, Kind, Phase

_RESHARD = (
    "# Right before the optimizer steps, on all ranks:",
    "for module in model.modules():",
    "    if isinstance(module, FSDPModule):",
    "        module.reshard()",
)


def old_weights(m: Measures) -> Iterator[Finding]:
    """A forward computed with what was gathered before the optimizer stepped.

    Which of several models an optimizer steps is not known, so of those nothing is
    said.
    """
    if not {Evidence.WINDOWS, Evidence.OPTIMIZER} <= m.evidence:
        return
    if len(trained_models(m)) != 1:
        return
    specs = all_units(m)
    steps: Counter[str] = Counter()
    ranks, no_grad = set(), False
    for rank in m.ranks:
        for unit, flags in _used_again(rank):
            spec = specs[rank.units[unit].fqn]
            if spec.trainable_numel > 0 and shard_ranks(m, spec) > 1:
                steps[spec.fqn] += 1
                ranks.add(rank.rank)
                no_grad |= bool(flags & Flag.NO_GRAD)
    if not steps:
        return
    most = -(-max(steps.values()) // len(ranks))
    what = "a pass without gradients" if no_grad else "what ran before"
    yield Finding(
        severity=Severity.CRITICAL,
        confidence=Confidence.HIGH,
        summary=f"{count(len(steps), 'unit')} computed with old weights in "
        f"{count(most, 'recorded step')}: {what} had left "
        f"{'it' if len(steps) == 1 else 'them'} gathered when the optimizer stepped, "
        "and what is gathered is not gathered again",
        units=tuple(steps),
        phase="forward",
        ranks=tuple(sorted(ranks)),
        evidence={"steps": most, "left_by_no_grad": no_grad},
        advice=(
            Advice(
                text="Reshard before the optimizer steps.",
                code="\n".join(
                    [
                        "from torch.distributed.fsdp import FSDPModule",
                        "",
                        model_comment(m, next(iter(steps))),
                        *_RESHARD,
                    ]
                ),
                memory_cost_bytes=0,
            ),
        ),
    )


def _used_again(rank: RankMeasures) -> Iterator[tuple[int, int]]:
    """Each unit and the flags of the window that opened, for each step into which it
    was carried over the optimizer's step, and whose forwards needed no gather.
    """
    windows, steps = rank.windows, rank.steps
    begins = dict(zip(steps.step.tolist(), steps.start_ns.tolist(), strict=True))
    ends = dict(zip(steps.step.tolist(), steps.end_ns.tolist(), strict=True))
    optimized = _last_optimized(rank)
    needless = _forwards_without_gather(rank)
    left: dict[tuple[int, int], tuple[int, int]] = {}  # open as a step ends
    for at in np.lexsort((windows.start_ns, windows.step)).tolist():
        step, unit = int(windows.step[at]), int(windows.unit[at])
        start, flags = int(windows.start_ns[at]), int(windows.flags[at])
        before = left.get((step - 1, unit))
        if before is not None and start <= begins.get(step, UNKNOWN):
            since, flags = before
            if optimized.get(step - 1, UNKNOWN) > since and (step, unit) in needless:
                yield unit, flags
        if step in ends and windows.end_ns[at] >= ends[step]:
            left[step, unit] = start, flags


def _last_optimized(rank: RankMeasures) -> Mapping[int, int]:
    """When a step's last optimizer began."""
    host = rank.host.rows(rank.host.kind == Kind.OPTIMIZER)
    order = np.argsort(host.start_ns, kind="stable")
    return dict(
        zip(host.step[order].tolist(), host.start_ns[order].tolist(), strict=True)
    )


def _forwards_without_gather(rank: RankMeasures) -> set[tuple[int, int]]:
    times = rank.unit_times
    mine = (times.phase == Phase.FORWARD) & (times.calls > 0) & (times.all_gathers == 0)
    return set(zip(times.step[mine].tolist(), times.unit[mine].tolist(), strict=True))
