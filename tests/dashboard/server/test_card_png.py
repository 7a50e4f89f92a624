"""The picture as PNG: drawn where it can be, else said."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from fsdpdoctor.errors import MissingDependencyError
from fsdpdoctor_dashboard.server.card_png import NEEDS_FONTS, NEEDS_RESVG, card_png

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="1200" height="630">'
    '<rect width="1200" height="630" fill="#ffffff"/></svg>'
)


def test_it_has_the_pictures_size() -> None:
    """A PNG of 1200 by 630 pixels."""
    pytest.importorskip("resvg_py", reason="needs fsdpdoctor[share]")
    try:
        drawn = card_png(SVG)
    except MissingDependencyError as missing:
        if str(missing) != NEEDS_FONTS:
            raise
        pytest.skip("needs a font")

    assert drawn[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(drawn[16:20], "big") == 1200
    assert int.from_bytes(drawn[20:24], "big") == 630


def test_what_it_takes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its library, and without fonts: words would be left out in silence."""
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(MissingDependencyError, match="share") as missing:
        card_png(SVG)
    assert str(missing.value) == NEEDS_RESVG
    fontless = SimpleNamespace(svg_to_bytes=lambda svg_string: b"same")
    monkeypatch.setitem(sys.modules, "resvg_py", fontless)
    with pytest.raises(MissingDependencyError) as missing:
        card_png(SVG)
    assert str(missing.value) == NEEDS_FONTS
