"""What a timeline shows of a run as a whole, before anybody looks at one rank.

It takes a look at every rank, so it is made once, and kept where the store is.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from fsdpdoctor_dashboard.data.initial_view import first_view
from fsdpdoctor_dashboard.data.queries import minimap
from fsdpdoctor_dashboard.data.rank_ends import rank_ends
from fsdpdoctor_dashboard.data.series import SERIES
from fsdpdoctor_dashboard.data.step_line import step_line
from fsdpdoctor_dashboard.data.store import Store

Json = dict[str, Any]

_CONTENT = "overview.json"


def whole_run(store: Store) -> Json:
    """What a page shows of a run as a whole: its minimap, its steps, its first view."""
    return {
        "minimap": minimap(store),
        "steps": step_line(store),
        "start": first_view(store),
    }


def overview(store: Store, folder: Path | None) -> Json:
    """The same, and its ranks: from the folder of the store, where it is kept."""
    if folder is not None:
        with suppress(OSError, ValueError):
            found: Json = json.loads((folder / _CONTENT).read_text(encoding="utf-8"))
            return found
    # Through JSON, so that it is the same when it comes from there.
    text = json.dumps({**whole_run(store), **_ranks(store)})
    if folder is not None:
        with suppress(OSError):  # without it, it is only slower
            new = folder / f".{_CONTENT}"
            new.write_text(text, encoding="utf-8")
            new.rename(folder / _CONTENT)
    made: Json = json.loads(text)
    return made


def _ranks(store: Store) -> Json:
    """Which rows each rank has, and what is said of it."""
    ends = rank_ends(store)
    used: set[int] = set()
    ranks = []
    for rank in store.ranks:
        series = {s.series for s in store.series(rank)}
        used |= series
        ranks.append(
            {
                "rank": rank,
                "rows": sorted({int(SERIES[one].row) for one in series}),
                "exposed_share": store.facts[rank].exposed_share,
                "ended": ends.get(rank),
            }
        )
    return {
        "used": sorted(used),
        "ranks": ranks,
        "memory": any(_has_memory(store, rank) for rank in store.ranks),
    }


def _has_memory(store: Store, rank: int) -> bool:
    return store.memory.get(rank) is not None and len(store.memory[rank]) > 0
