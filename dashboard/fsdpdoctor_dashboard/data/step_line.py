"""Every step of a run in a line of bars, so that slow ones are seen at a glance."""

from __future__ import annotations

from typing import Any

import numpy as np

from fsdpdoctor_dashboard.data.initial_view import steps_of
from fsdpdoctor_dashboard.data.store import Store

MOST_BARS = 512
"""A screen tells no more apart; of more steps neighbours share a bar."""


def step_line(store: Store) -> dict[str, Any]:
    """The first rank's steps: how many, how long a usual one is, and a bar for each,
    which is its number, begin, end and length. Neighbours that share a bar have the
    number and the length of the longest of them: what is slow does not drown.

    Usual is the judged step of the middle length, or the median where none was judged.
    """
    steps = steps_of(store, store.ranks[0]) if store.ranks else None
    if steps is None:
        return {"count": 0, "usual": 0, "bars": []}
    length = steps.length.astype(np.int64)
    together = -(-len(length) // MOST_BARS)
    bars = []
    for low in range(0, len(length), together):
        here = slice(low, low + together)
        longest = low + int(np.argmax(length[here]))
        last = min(low + together, len(length)) - 1
        begin, end = int(steps.start[low]), int(steps.start[last]) + int(length[last])
        bars.append([int(steps.span[longest]), begin, end, int(length[longest])])
    judged = np.flatnonzero(steps.span == store.facts[store.ranks[0]].typical_step)
    usual = length[judged[0]] if len(judged) else np.median(length)
    return {"count": len(length), "usual": int(usual), "bars": bars}
