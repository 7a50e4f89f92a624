"""Where a rank's record ends before the run does, and what its header says of it.

A run that is going on writes one rank's steps before another's: no rank is over then.
"""

from __future__ import annotations

from typing import Any

from fsdpdoctor_dashboard.data.initial_view import steps_of
from fsdpdoctor_dashboard.data.store import Store

BROKEN_OFF = "its record breaks off"
"""Of a rank that wrote no end although another one did."""
WORDS = {
    "exception": "ended by an exception",
    "signal": "ended by a signal",
    "detached": "recording stopped",
    "done": "done",
    "running": BROKEN_OFF,
}
"""By the first word of what a header says; the rest is the user's own."""
EARLY = 0.5
"""Of the last step: a rank that is done so long before the others is marked."""


def rank_ends(store: Store) -> dict[int, dict[str, Any]]:
    """By rank the moment and words, where a rank's end is to be marked."""
    kinds = {rank: _kind(store.facts[rank].ended) for rank in store.ranks}
    over = any(kind != "running" for kind in kinds.values())
    found: dict[int, dict[str, Any]] = {}
    for rank, kind in kinds.items():
        at = _last(store, rank)
        if at is None or kind not in WORDS:
            continue
        early = store.end - at > EARLY * _step_length(store, rank)
        if kind in ("exception", "signal") or (over and early):
            found[rank] = {"at": at, "words": WORDS[kind]}
    return found


def _kind(ended: str) -> str:
    return ended.partition(":")[0].strip()


def _last(store: Store, rank: int) -> int | None:
    ends = [
        int(series.start[-1]) + int(series.length[-1])
        for series in store.series(rank)
        if len(series.start)
    ]
    return max(ends, default=None)


def _step_length(store: Store, rank: int) -> int:
    steps = steps_of(store, rank)
    return 0 if steps is None else int(steps.length[-1])
