"""The first picture stands in the page that is asked for, where there is one."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data import tiles
from fsdpdoctor_dashboard.data.run_registry import Library
from tests.dashboard.client import Client


@pytest.fixture(scope="module")
def library(runs: dict[str, Path]) -> Library:
    """A run that is read."""
    library = Library([runs["before"]], open_run)
    library.wait("before")
    return library


@pytest.fixture
def admitted(library: Library) -> Client:
    """A browser that has been let in."""
    client = Client(library)
    client.get("/?token=secret")
    return client


def first(page: bytes) -> dict[str, object] | None:
    """What stands in a page for the first picture."""
    found = re.search(r'id="fd-first">(.*?)</script>', page.decode())
    return json.loads(found[1]) if found else None


def test_the_timelines_page_has_its_run_and_a_tile(admitted: Client) -> None:
    """The ranks that fit a screen, in full, from the run's whole length."""
    found = first(admitted.get("/timeline?run=before")[1])
    assert found is not None
    assert (found["run"], found["condensed"]) == ("before", False)
    assert found["ranks"] == [0, 1, 2, 3]
    tile = base64.b64decode(str(found["tile"]))
    assert tile[:4] == tiles.MAGIC.to_bytes(4, "little")
    assert found["meta"] == json.loads(admitted.get("/api/meta?run=before")[1])


def test_other_pages_have_the_scripts_alone(admitted: Client) -> None:
    """So has one that compares, and one of a run that nobody knows."""
    for path in ("/?run=before", "/timeline?run=before&with=x", "/timeline?run=none"):
        status, page = admitted.get(path)
        assert status == 200
        assert first(page) is None
        assert b"timeline.js?" in page


def test_the_scripts_are_kept_by_name(admitted: Client) -> None:
    """For a year: another text has another name."""
    name = re.search(rb"timeline\.js\?([0-9a-f]{16})", admitted.get("/timeline")[1])
    assert name is not None
    with admitted.http.get("/timeline.js") as answer:
        assert answer.mimetype == "text/javascript"
        assert answer.headers["Cache-Control"].endswith("immutable")
        assert b"fd-first" in answer.data
