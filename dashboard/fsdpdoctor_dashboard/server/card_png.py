"""The picture of a run as PNG, which chats and issue trackers show and SVG is not.

Drawn by resvg, a package of its own without a browser: `fsdpdoctor[share]`.
"""

from __future__ import annotations

from fsdpdoctor.errors import MissingDependencyError

NEEDS_RESVG = (
    "card.svg is the whole picture; to have it as PNG, too: "
    "pip install 'fsdpdoctor[share]'"
)
NEEDS_FONTS = (
    "card.svg is the whole picture; this machine has no fonts to draw its words as PNG"
)
WORD = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20">{}</svg>',
    '<text y="15" font-family="sans-serif">word</text>',
)


def card_png(drawn: str) -> bytes:
    """The picture's pixels. Raises MissingDependencyError where it cannot be drawn."""
    try:
        import resvg_py
    except ImportError:
        raise MissingDependencyError(NEEDS_RESVG) from None
    frame, word = WORD
    empty, written = (
        bytes(resvg_py.svg_to_bytes(svg_string=frame.format(inside)))
        for inside in ("", word)
    )
    if empty == written:  # what it has no font for, it leaves out without a word
        raise MissingDependencyError(NEEDS_FONTS)
    return bytes(resvg_py.svg_to_bytes(svg_string=drawn))
