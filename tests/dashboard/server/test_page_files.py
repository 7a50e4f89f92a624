"""Our scripts and styles are two files that a browser keeps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.server.page_files import ASSETS, SCRIPT, STYLE, content
from fsdpdoctor_dashboard.timeline.scripts import without_comments
from tests.dashboard.client import Client


@pytest.fixture
def admitted(runs: dict[str, Path]) -> Client:
    """A browser that has been let in."""
    client = Client(Library([runs["before"]], open_run))
    client.get("/?token=secret")
    return client


def test_a_page_asks_for_one_script_and_one_style_of_ours(admitted: Client) -> None:
    """By names that hold their content's digest: neither is ever asked for again."""
    page = admitted.get("/units?run=before")[1].decode()
    assert "/assets/" not in page
    for name, kind in ((SCRIPT, "src"), (STYLE, "href")):
        address = re.findall(rf'{kind}="(/{name}\?[0-9a-f]{{16}})"', page)
        assert len(address) == 1
        answer = admitted.http.get(address[0])
        assert answer.status_code == 200
        assert answer.get_data(as_text=True) == content(name)
        assert "immutable" in answer.headers["Cache-Control"]


def test_ours_are_there_before_dash_begins(admitted: Client) -> None:
    """Dash's renderer asks for functions of the page's script as it starts."""
    page = admitted.get("/")[1].decode()
    places = [f"/{SCRIPT}?", "dash_renderer", "new DashRenderer"]
    found = [page.index(place) for place in places]
    assert found == sorted(found)


def test_every_asset_is_in_one_of_the_two() -> None:
    """Each line of code, and nothing else lies in the folder."""
    assert {path.suffix for path in ASSETS.iterdir()} == {".js", ".css"}
    for path in ASSETS.iterdir():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".js":
            assert without_comments(text) in content(SCRIPT)
        else:
            assert text in content(STYLE)
