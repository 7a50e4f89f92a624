"""What a timeline shows first: a step like most of them, or what follows the start."""

from __future__ import annotations

from typing import Any

import numpy as np

from fsdpdoctor_dashboard.data.series import SERIES, Row
from fsdpdoctor_dashboard.data.store import Series, Store

SLOW_START = 3
"""A leading step of so many median steps is a start: it compiles, or imports."""
WORTH_LEAVING = 0.25
"""Part of the whole run that the start must take. Below it all steps have room."""
MARGIN = 0.01
"""Of what is shown, on both sides."""
STEP_ROOM = 0.02
"""The same of a single step: what went before it has to be seen to end."""


def first_view(store: Store) -> dict[str, Any] | None:
    """The judged step of the middle length, on all ranks; where no step was judged the
    run from the end of its start on; None where the whole run is the better view.
    """
    return _typical_step(store) or _after_the_start(store)


def steps_of(store: Store, rank: int) -> Series | None:
    """A rank's steps; None: it has none."""
    for series in store.series(rank):
        if SERIES[series.series].row == Row.STEP and len(series.start):
            return series
    return None


def _typical_step(store: Store) -> dict[str, Any] | None:
    first = steps_of(store, store.ranks[0]) if store.ranks else None
    if first is None or len(first.start) < 2:
        return None
    step = store.facts[store.ranks[0]].typical_step
    found = [
        (int(steps.start[at]), int(steps.start[at]) + int(steps.length[at]))
        for rank in store.ranks
        if (steps := steps_of(store, rank)) is not None
        for at in np.flatnonzero(steps.span == step).tolist()
    ]
    if step is None or step not in first.span or not found:
        return None
    begin, end = min(a for a, _ in found), max(b for _, b in found)
    margin = int(STEP_ROOM * (end - begin))
    return {"t0": begin - margin, "t1": end + margin, "step": step}


def _after_the_start(store: Store) -> dict[str, Any] | None:
    steps = steps_of(store, store.ranks[0]) if store.ranks else None
    if steps is None or len(steps.start) < 2:
        return None
    ends = steps.start + steps.length
    slow = steps.length > SLOW_START * float(np.median(steps.length))
    leading = int(np.argmin(slow)) if not slow.all() else 0
    if not leading:
        return None
    begin, end = int(ends[leading - 1]), int(store.end)
    if begin < WORTH_LEAVING * end:
        return None
    margin = int(MARGIN * (end - begin))
    return {"t0": begin - margin, "t1": end + margin, "step": None}
