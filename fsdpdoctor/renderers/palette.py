"""Every colour of a picture of a run, once: terminal, page, figures and timeline.

Okabe and Ito's, and neighbours of theirs, which colour-blind eyes tell apart.
Vermillion is for exposed time alone, which is also hatched, edged and labelled: nothing
is told by colour alone.
"""

from __future__ import annotations

SERIES = {
    "forward": "#0072b2",
    "backward": "#56b4e9",
    "optimizer": "#7f8790",
    "kernel": "#a9b9c9",
    "copy_out": "#cc79a7",
    "copy_in": "#b9b32a",
    "memcpy": "#cfc98a",
    "all_gather": "#e8b23a",
    "all_gather_wait": "#f6e2b0",
    "reduce_scatter": "#009e73",
    "reduce_scatter_wait": "#a8dccd",
    "all_reduce": "#7a6a4f",
    "all_reduce_wait": "#cfc5b3",
    "other_comm": "#5b6770",
    "issue": "#46536b",
    "hook": "#b4bcc6",
    "sync": "#5e3c99",
    "pause": "#cba97c",
    "input": "#2f7f86",
    "unsharded": "#8e7cc3",
    "ruler": "#98a2ad",
    "operator": "#8fb3a3",
    "annotation": "#c7a9c9",
    "call": "#6f7fb5",
}
"""Of the timeline's series, and of the same things in figures."""

_DARK_SERIES = {
    "all_gather_wait": "#6e5a28",
    "reduce_scatter_wait": "#1f5c4c",
    "all_reduce_wait": "#4d463a",
    "issue": "#93a3c2",
    "hook": "#5c6672",
    "kernel": "#5f7286",
    "sync": "#a98be0",
    "other_comm": "#8b98a5",
    "all_reduce": "#a8977a",
    "pause": "#7d6a4c",
    "copy_in": "#d9d25e",
    "memcpy": "#8d8858",
    "operator": "#4f7a68",
    "annotation": "#7d5f80",
    "call": "#7f90c9",
}
"""Those that would be too bright, or too dark, on a dark ground."""

INKS = {
    "light": {
        "background": "#ffffff",
        "panel": "#f6f8fa",
        "lane": "#f1f3f5",
        "line": "#d0d7de",
        "grid": "#e6eaee",
        "text": "#1f2328",
        "faint": "#59636e",
        "bar": "#aab4be",
        "exposed": "#d5421e",
        "memory": "#0072b2",
        "memoryFill": "#d6e8f4",
        "cursor": "#1f2328",
        "area": "#0072b222",
        "select": "#1f2328",
        "veil": "#ffffffb0",  # over what steps back
    },
    "dark": {
        "background": "#0d1117",
        "panel": "#151b23",
        "lane": "#161c24",
        "line": "#3d444d",
        "grid": "#222932",
        "text": "#f0f6fc",
        "faint": "#9198a1",
        "bar": "#4d5762",
        "exposed": "#ff6a3d",
        "memory": "#58a6ff",
        "memoryFill": "#172a40",
        "cursor": "#f0f6fc",
        "area": "#58a6ff33",
        "select": "#ffffff",
        "veil": "#0d1117b0",
    },
}
"""What the timeline is drawn with, by theme."""

EXPOSED = INKS["light"]["exposed"]
"""Of reports: told from every other colour by colour-blind eyes too."""

OUTLOOK = {"floor": "#57788f", "left": "#a9c4d6", "gain": "#009e73"}
"""Of the bar of the step: what stays in any case, what is lost, what a change wins."""

CAUSES = {
    "host_late": "#56b4e9",
    "queued": "#cc79a7",
    "straggler": "#8e7cc3",
    "wire": "#e8b23a",
    "tail": "#9a9a9a",
    "wire_or_straggler": "#b08a5a",
}
"""Of what compute waited for."""

PARTS = {
    "forward": SERIES["forward"],
    "backward": SERIES["backward"],
    "recompute": "#3d8fbf",
    "optimizer": SERIES["optimizer"],
    "clip": "#9aa3ab",
    "copy": SERIES["copy_out"],
    "compute": SERIES["kernel"],
    "exposed_other_communication": SERIES["other_comm"],
    "memcpy": SERIES["memcpy"],
    "sync": SERIES["sync"],
    "input": SERIES["input"],
    "gc": SERIES["pause"],
    "checkpoint": "#e0cfae",
    "host_bound": SERIES["issue"],
    "no_grad": "#8a9a3b",
    "script": "#b9a3c9",
    "other": "#d5dbe1",
}
"""Of the budget's parts beside a timeline; exposed ones have the page's vermillion."""


_LIGHT = 140.0
"""A ground brighter than that, of 255, takes a black letter."""


def letter_on(ground: str) -> str:
    """Black or white, whichever can be read on a ground."""
    red, green, blue = (int(ground[at : at + 2], 16) for at in (1, 3, 5))
    brightness = 0.299 * red + 0.587 * green + 0.114 * blue
    return "black" if brightness > _LIGHT else "white"


def inks(theme: str) -> dict[str, str]:
    """What is drawn with on a ground that is dark, or else light."""
    return INKS["dark" if theme == "dark" else "light"]


def series_colours(theme: str) -> dict[str, str]:
    """Of the timeline's series and of exposed time."""
    found = SERIES | _DARK_SERIES if theme == "dark" else SERIES
    return found | {"exposed": inks(theme)["exposed"]}
