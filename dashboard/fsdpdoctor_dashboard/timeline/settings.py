"""What the timeline's scripts share with Python: each colour, word and limit once.

A page's first script puts them into the window, for what is drawn before anything was
asked for needs them too. `Settings` in globals.d.ts says their types.
"""

from __future__ import annotations

import json
from functools import cache

from fsdpdoctor.renderers.palette import INKS, series_colours
from fsdpdoctor.renderers.report_view import CAUSE_WORDS
from fsdpdoctor_dashboard.data import tiles
from fsdpdoctor_dashboard.data.series import ROW_WORDS, WAITS, Row

CONDENSED_FROM = 13
"""Ranks from which on a timeline starts condensed."""
MOST_TILES = 4
"""Tiles in one answer; a view needs three."""


def settings() -> dict[str, object]:
    """All of them, as the scripts name them."""
    return {
        "colours": {theme: series_colours(theme) for theme in INKS},
        "inks": INKS,
        "causes": CAUSE_WORDS,
        "waits": WAITS,
        "rows": {row.name: row.value for row in Row},
        "rowWords": ROW_WORDS,
        "condensedFrom": CONDENSED_FROM,
        "mostTiles": MOST_TILES,
        "tile": {
            "magic": tiles.MAGIC,
            "bins": tiles.BINS,
            "maxSlices": tiles.MAX_MARKS,
            "minLevel": tiles.MIN_LEVEL,
            "noUnit": tiles.NO_UNIT,
            "binsMode": tiles.BINS_MODE,
            "slicesMode": tiles.MARKS_MODE,
            "fromLeft": tiles.FROM_LEFT,
            "toRight": tiles.TO_RIGHT,
        },
    }


@cache
def settings_script() -> str:
    """The script that a page takes first."""
    return f"globalThis.fsdpSettings = {json.dumps(settings())};\n"
