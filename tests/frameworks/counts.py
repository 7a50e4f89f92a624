"""Gathers and reductions by step: as recorded, and as counted apart from it."""

from __future__ import annotations

import json
from collections import Counter

from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Kind as Span
from fsdpdoctor.schema import Phase

Counts = Counter[tuple[int, str, str]]
"""How many, by step, what and phase."""


def counted(text: str, turns: int = 1) -> Counts:
    """What was counted beside the recorder; a step has so many optimizers' turns."""
    counts: Counts = Counter()
    for turn, what, _, phase, number in json.loads(text)["counts"]:
        at = turn // max(turns, 1)
        counts[at, what, phase if what == "all_gather" else "backward"] += number
    return counts


def recorded_by(rank: RankData) -> Counts:
    """What the record has."""
    counts: Counts = Counter()
    names = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward"}
    for step in rank.steps:
        spans = step.spans
        for unit, phase in zip(
            spans.unit[spans.kind == Span.ALL_GATHER],
            spans.phase[spans.kind == Span.ALL_GATHER],
            strict=True,
        ):
            if unit >= 0:
                counts[step.step, "all_gather", names[Phase(phase)]] += 1
        reductions = spans.kind == Span.REDUCE_SCATTER
        number = int((spans.unit[reductions] >= 0).sum())
        counts[step.step, "reduce", "backward"] += number
    return +counts


def whole(counts: Counts) -> Counter[tuple[str, str]]:
    """Over all steps: where none of torch's optimizers tells them apart."""
    found: Counter[tuple[str, str]] = Counter()
    for (_, what, phase), number in counts.items():
        found[what, phase] += number
    return found
