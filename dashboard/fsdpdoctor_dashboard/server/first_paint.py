"""The timeline's first picture, in the page itself: no round trip before it.

[Note: The first picture] Dash's own scripts take most of a page's first half second,
and a picture needs none of them. So the page starts with the timeline's scripts, in
one file, and with what they need for a first picture of a run that is open: its
`meta` and the tiles of its first view. first_paint.js paints it at once; the Dash
component takes it over when Dash is there.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from typing import Any

from flask import Blueprint, Response, request

from fsdpdoctor_dashboard.data.run_registry import (
    Library,
    Loading,
    UnknownRunError,
    meta_of,
)
from fsdpdoctor_dashboard.data.store import Store
from fsdpdoctor_dashboard.data.tiles import MIN_LEVEL, whole_level
from fsdpdoctor_dashboard.server.page_files import kept
from fsdpdoctor_dashboard.server.plotly_script import plotly_address
from fsdpdoctor_dashboard.timeline.scripts import FIRST_PAINT, SCRIPTS, script
from fsdpdoctor_dashboard.timeline.settings import CONDENSED_FROM, settings_script

CROWD = 16
"""Condensed ranks above which tiles are one level coarser: see tracks.js."""
FIRST_RANKS = 6
"""Ranks in full that fit a screen."""
FIRST_LINES = 256
"""Ranks, condensed, that fit the highest screen. Others are asked for when somebody
scrolls to them."""


@cache
def _bundle() -> tuple[str, str]:
    """All scripts of the component in one, and a name that changes with them."""
    ours = (script(name) for name in (*SCRIPTS, FIRST_PAINT))
    text = "".join((settings_script(), *ours))
    return text, hashlib.sha256(text.encode()).hexdigest()[:16]


def early_routes() -> Blueprint:
    """The route of the scripts."""
    early = Blueprint("early", __name__)

    @early.get("/timeline.js")
    def scripts() -> Response:
        return kept(_bundle()[0], "text/javascript")

    return early


def first_picture(library: Library, prefix: str, charts: str) -> str:
    """What stands first in the page that is being asked for; `charts` are the pages
    that have some.
    """
    run_id = request.args.get("run") or library.entries[0].id
    data = ""
    if request.path == "/timeline" and "with" not in request.args:
        data = _data(library, run_id)
    name = _bundle()[1]
    # Other pages need it once somebody goes to the timeline: Dash's scripts run first.
    when = 'fetchpriority="high"' if request.path == "/timeline" else "defer"
    # Run ids hold nothing that HTML would read: see Library.
    return (
        f'{data}<script src="{prefix}timeline.js?{name}" {when} '
        f'data-base="{prefix}" data-run="{library.entries[0].id}" '
        f'data-plotly="{plotly_address(prefix)}" data-charts="{charts}"></script>'
    )


def first_tiles(
    store: Store, view: dict[str, Any] | None, *, asked: bool
) -> tuple[int, range]:
    """Level and indices of the tiles that a first view is made of: the overview where
    the whole run is shown, or an address has asked for another view.
    """
    whole = whole_level(store)
    if view is None or asked:
        return whole, range(1)
    width = view["t1"] - view["t0"]
    crowd = int(len(store.ranks) > CROWD)
    level = min(whole, max(MIN_LEVEL, width.bit_length() - 1) + crowd)
    last = min(store.end, view["t1"]) >> level
    return level, range(max(0, view["t0"] >> level), last + 1)


def first_ranks(store: Store) -> tuple[int, ...]:
    """The ranks that a first picture has."""
    condensed = len(store.ranks) >= CONDENSED_FROM
    return store.ranks[: FIRST_LINES if condensed else FIRST_RANKS]


def _data(library: Library, run_id: str) -> str:
    try:
        run = library.picture(run_id)
    except UnknownRunError:
        return ""
    if isinstance(run, Loading):
        return ""  # the script asks until it is there
    store = run.store
    condensed = len(store.ranks) >= CONDENSED_FROM
    ranks = first_ranks(store)
    meta = meta_of(run)
    level, indices = first_tiles(store, meta["start"], asked="t0" in request.args)
    tiles = b"".join(
        run.tiles.tile(level, index, ranks, condensed=condensed) for index in indices
    )
    content = {
        "run": run.id,
        "meta": meta,
        "condensed": condensed,
        "ranks": ranks,
        "tiles": base64.b64encode(tiles).decode(),
    }
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="fd-first">{text}</script>'
