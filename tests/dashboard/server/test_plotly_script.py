"""plotly.js is small, packed, kept, and of the version that figures are made for."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from plotly.offline import get_plotlyjs_version

from fsdpdoctor_dashboard.server.plotly_script import (
    AT_ONCE,
    BUNDLE,
    chosen,
    version_of,
)
from tests.dashboard.client import Client

HEAD = "/**\n* plotly.js {}v{}\n* Copyright\n*/\n"


def script(folder: Path, version: str) -> Path:
    """An installed plotly.js."""
    path = folder / "plotly.min.js"
    path.write_text(HEAD.format("", version) + "whole")
    return path


def bundle(folder: Path, version: str) -> Path:
    """A bundle of ours."""
    path = folder / "bundle.gz"
    text = HEAD.format("(cartesian - minified) ", version) + "small"
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_the_bundle_is_for_figures_of_its_major_version(tmp_path: Path) -> None:
    """Any other installed plotly brings its own script, under a name of its own."""
    same = chosen(bundle(tmp_path, "4.1.1"), script(tmp_path, "4.9.0"))
    other = chosen(bundle(tmp_path, "4.1.1"), script(tmp_path, "3.0.1"))
    unknown = chosen(bundle(tmp_path, "4.1.1"), script(tmp_path, ""))

    assert same.version == "4.1.1"
    assert gzip.decompress(same.packed).endswith(b"small")
    assert other.version == "3.0.1-whole"
    assert gzip.decompress(other.packed).endswith(b"whole")
    assert gzip.decompress(other.packed).startswith(AT_ONCE)
    assert gzip.decompress(unknown.packed).endswith(b"whole")


def test_the_bundle_draws_what_figures_are_made_of() -> None:
    """It is of a version, and its licence stands beside it."""
    text = gzip.decompress(BUNDLE.read_bytes())

    assert version_of(text[:400])
    assert text.startswith(AT_ONCE)
    assert b"MIT License" in (BUNDLE.parent / "LICENSE.plotly").read_bytes()
    for kind in (b"scatter", b"bar", b"heatmap", b"violin"):
        assert kind in text
    assert version_of(HEAD.format("", "3.10.2").encode()) == "3.10.2"


def test_browsers_keep_it_and_take_it_packed(admitted: Client) -> None:
    """A page names its address, which holds its version."""
    page = admitted.get("/units?run=before")[1].decode()
    found = re.search(r'data-plotly="/(plotly\.js\?([\d.]+)(-whole)?)"', page)
    assert found is not None
    with admitted.http.get(f"/{found[1]}", headers={"Accept-Encoding": "gzip"}) as kept:
        assert kept.headers["Content-Encoding"] == "gzip"
        assert "immutable" in kept.headers["Cache-Control"]
        packed = kept.data
    with admitted.http.get(f"/{found[1]}") as plain:
        assert "Content-Encoding" not in plain.headers
        assert plain.data == gzip.decompress(packed)

    assert found[2].split(".")[0] == get_plotlyjs_version().split(".")[0]
