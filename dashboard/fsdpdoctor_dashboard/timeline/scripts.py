"""The timeline's scripts as a page gets them: in order, and without their comments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

FILES = Path(__file__).parent

SCRIPTS = (
    "data/tiles.js",
    "format.js",
    "drawing/layout.js",
    "drawing/canvas.js",
    "drawing/raster.js",
    "data/loader.js",
    "data/data_source.js",
    "data/local_source.js",
    "data/first_view.js",
    "drawing/tracks.js",
    "data/opened_lanes.js",
    "controls/details_panel.js",
    "controls/bookmarks.js",
    "controls/selection.js",
    "controls/trace_events.js",
    "controls/address.js",
    "controls/toolbar.js",
    "controls/mouse.js",
    "controls/keys.js",
    "drawing/rows.js",
    "drawing/opened_rows.js",
    "drawing/unknown.js",
    "drawing/rulers.js",
    "drawing/minimap.js",
    "drawing/memory.js",
    "drawing/overlay.js",
    "controls/follow.js",
    "drawing/surface.js",
    "timeline.js",
)
"""In the order in which they need each other."""
FIRST_PAINT = "first_paint.js"


class UnclearScriptError(ValueError):
    """A script of ours whose lines do not say what is a comment."""


@cache
def script(name: str) -> str:
    """A script of the component as it is sent."""
    return without_comments((FILES / name).read_text(encoding="utf-8"))


def style() -> str:
    """The component's style sheet."""
    return (FILES / "timeline.css").read_text(encoding="utf-8")


def without_comments(text: str) -> str:
    """A script without the lines that are only a comment, or empty.

    A fifth of what is sent would be types, which only their checker reads. Text that
    goes over several lines could hold a line that looks like a comment: such a script
    is refused, so that none is ever cut.
    """
    kept = list(_code(text.splitlines()))
    if any(line.count("`") % 2 or line.endswith("\\") for line in kept):
        raise UnclearScriptError("text goes over several lines: end it in each")
    return "".join(f"{line}\n" for line in kept)


def _code(lines: Iterable[str]) -> Iterator[str]:
    within = False
    for line in lines:
        words = line.strip()
        if within:
            within = "*/" not in words
            if not within and not words.endswith("*/"):
                raise UnclearScriptError(f"code follows a comment: {words}")
        elif words.startswith("/*") and "*/" not in words[2:]:
            within = True
        elif words.startswith("/*") and words.endswith("*/") and words.count("*/") == 1:
            continue
        elif words and not words.startswith("//"):
            yield line
