"""Host events of one kind, over the judged steps of all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.finding import Location, Value
from fsdpdoctor.schema import Kind, median


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """What a kind of host event took."""

    ranks: tuple[int, ...]  # that have any
    per_step: float  # events, per judged step and rank
    total_ns: int
    median_ns: int
    longest_ns: int
    by_rank: dict[str, Value]  # nanoseconds per step
    mostly: tuple[int, ...]  # the ranks with half as much as the worst one, or more
    values: dict[int, int]  # events by their value: a collection's generation
    places: tuple[Location, ...]  # the longest ones


def pauses(m: Measures, kind: Kind, *, all_steps: bool = False) -> Pauses:
    """The events of one kind in judged steps, or in all that were recorded."""
    places: list[Location] = []
    by_rank: dict[str, Value] = {}
    values: dict[int, int] = {}
    steps = 0
    for rank in m.ranks:
        keep = rank.host.kind == kind
        if not all_steps:
            keep &= rank.in_judged(rank.host.step)
        events = rank.host.rows(keep)
        count = len(rank.steps) if all_steps else int(rank.judged.sum())
        steps += count
        if not len(events):
            continue
        by_rank[str(rank.rank)] = round(int(events.duration_ns.sum()) / max(count, 1))
        for value, times in zip(
            *np.unique(events.value, return_counts=True), strict=True
        ):
            values[int(value)] = values.get(int(value), 0) + int(times)
        places += [
            Location(
                rank=rank.rank, step=int(step), start_ns=int(start), end_ns=int(end)
            )
            for step, start, end in zip(
                events.step, events.start_ns, events.end_ns, strict=True
            )
        ]
    lengths = [place.end_ns - place.start_ns for place in places]
    places.sort(key=lambda p: p.start_ns - p.end_ns)
    return Pauses(
        ranks=tuple(int(rank) for rank in by_rank),
        per_step=round(len(places) / max(steps, 1), 4),
        total_ns=sum(lengths),
        median_ns=int(median(lengths)) if lengths else 0,
        longest_ns=max(lengths, default=0),
        by_rank=by_rank,
        mostly=_mostly(by_rank),
        values=values,
        places=tuple(places[:3]),
    )


def _mostly(by_rank: Mapping[str, Value]) -> tuple[int, ...]:
    taken = {int(rank): ns for rank, ns in by_rank.items() if isinstance(ns, int)}
    worst = max(taken.values(), default=0)
    return tuple(rank for rank, ns in taken.items() if ns * 2 >= worst)


def whose(m: Measures, found: Pauses) -> str:
    """Whose pauses they are, where they are not every rank's: a part of a sentence."""
    ranks, every = found.mostly, len(m.ranks)
    if not ranks or len(ranks) == every:
        return ""
    if len(ranks) > NAMED:
        return f", most of all on {len(ranks)} of {every} ranks"
    word = "rank" if len(ranks) == 1 else "ranks"
    return f", most of all on {word} {', '.join(map(str, ranks))}"


NAMED = 4
"""As many ranks as fit a sentence."""
