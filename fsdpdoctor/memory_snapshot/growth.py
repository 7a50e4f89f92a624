"""Steps within a history, and lines whose memory grows from step to step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.memory_snapshot.attribution import Attributed, Site, site_of
from fsdpdoctor.memory_snapshot.call_site import of_torch
from fsdpdoctor.memory_snapshot.snapshot import Action, Annotation, Stack
from fsdpdoctor.memory_snapshot.snapshot_report import Growth
from fsdpdoctor.schema.memory import Bucket

LEAST_STEPS = 4
"""The first step makes optimizer states; two that grow after it may be a cache that
fills, a third is a trend."""

NO_STEPS = "no step can be told apart: no optimizer's step has a range or allocates"
TOO_FEW = "{steps} in the history: growth is judged from {least} on"

_OPTIMIZER = "Optimizer.step#"
_PROFILER = "ProfilerStep#"


class Steps(NamedTuple):
    """The events after which each step had ended, and what told so."""

    ends: npt.NDArray[np.int64]
    told_by: str | None


def steps_of(found: Attributed) -> Steps:
    """Where steps end: where ranges of one optimizer's step do, or of the profiler's
    steps; else after the allocations of the optimizer.
    """
    annotations = found.snapshot.annotations
    for prefix, words in (
        (_OPTIMIZER, "ranges of the optimizer's step"),
        (_PROFILER, "ranges of the profiler's steps"),
    ):
        times = _ends_of(annotations, prefix)
        if times and (found.history.time_us >= 0).all():
            ends = np.searchsorted(found.history.time_us, times, side="right") - 1
            return Steps(ends[ends >= 0].astype(np.int64), words)
    ends = _after_optimizers(found)
    return Steps(ends, "allocations of the optimizer" if len(ends) else None)


def _ends_of(annotations: Sequence[Annotation], prefix: str) -> list[int]:
    """Of the optimizer that steps first, where several take turns."""
    names = [one.name for one in annotations if one.name.startswith(prefix)]
    if not names:
        return []
    return [
        one.time_us
        for one in annotations
        if not one.begins
        and (one.name == names[0] or (prefix == _PROFILER and one.name in names))
    ]


def _after_optimizers(found: Attributed) -> npt.NDArray[np.int64]:
    history = found.history
    in_optimizer = np.array([_is_optimizers(s) for s in found.snapshot.stacks], bool)
    allocs = np.flatnonzero((history.action == Action.ALLOC) & (history.stack >= 0))
    if not len(allocs) or not in_optimizer.any():
        return np.zeros(0, np.int64)
    inside = in_optimizer[history.stack[allocs]]
    # The event before the first allocation after each stretch of the optimizer's.
    left = np.flatnonzero(inside[:-1] & ~inside[1:]) + 1
    ends: npt.NDArray[np.int64] = allocs[left] - 1
    if inside[-1]:
        ends = np.append(ends, len(history) - 1)
    return ends


def _is_optimizers(stack: Stack) -> bool:
    return any((of_torch(frame) or "").startswith("optim/") for frame in stack)


def growth_of(
    found: Attributed, steps: Steps
) -> tuple[tuple[Growth, ...] | None, str | None]:
    """Lines that held more as every step after the first ended than as the one before
    did; or why that cannot be told.
    """
    if steps.told_by is None:
        return None, NO_STEPS
    if len(steps.ends) < LEAST_STEPS:
        return None, TOO_FEW.format(steps=len(steps.ends), least=LEAST_STEPS)
    per_step = [_held_by_site(found, int(end)) for end in steps.ends[1:]]
    rows = []
    for key, last in per_step[-1].items():
        held = [step[key] for step in per_step]
        if all(b > a for a, b in pairwise(held)):
            (site, bucket) = key
            rows.append(
                Growth(
                    where=None if site is None else site[0],
                    function=None if site is None else site[1],
                    bucket=None if bucket is None else bucket.value,
                    bytes_per_step=(last - held[0]) // (len(held) - 1),
                    held_bytes=last,
                    steps=len(held),
                )
            )
    return tuple(sorted(rows, key=lambda row: -row.bytes_per_step)), None


def _held_by_site(found: Attributed, event: int) -> Counter[tuple[Site, Bucket | None]]:
    held: Counter[tuple[Site, Bucket | None]] = Counter()
    sites: dict[int, Site] = {}
    for row in found.held.held_at(event).tolist():
        number = int(found.held.stack[row])
        if number not in sites:
            sites[number] = site_of(found.stack(row))
        key = (sites[number], found.purposes.of(row).bucket)
        held[key] += int(found.held.size_bytes[row])
    return held
