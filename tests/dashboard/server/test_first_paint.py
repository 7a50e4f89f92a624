"""The first picture stands in the page that is asked for, where there is one."""

from __future__ import annotations

import base64
import json
import re
import struct
from pathlib import Path

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data import tiles
from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.data.slices import StepRows
from fsdpdoctor_dashboard.server.first_paint import first_tiles
from tests.dashboard.client import Client
from tests.dashboard.data.test_initial_view import store_of


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


def places(packed: object) -> list[tuple[int, int]]:
    """Level and index of each of the tiles that a page has."""
    content = base64.b64decode(str(packed))
    head = tiles.MAGIC.to_bytes(4, "little")
    starts = [found.start() for found in re.finditer(re.escape(head), content)]
    assert starts[0] == 0
    fields = [struct.unpack_from("<IQ", content, at + 4) for at in starts]
    return [(level, index) for level, index in fields]


def test_the_timelines_page_has_its_run_and_its_tiles(admitted: Client) -> None:
    """The ranks that fit a screen, in full, over the step that is shown first."""
    found = first(admitted.get("/timeline?run=before")[1])
    assert found is not None
    assert (found["run"], found["condensed"]) == ("before", False)
    assert found["ranks"] == [0, 1, 2, 3]
    meta = json.loads(admitted.get("/api/meta?run=before")[1])
    assert found["meta"] == meta
    view = meta["start"]
    given = places(found["tiles"])
    (level,) = {level for level, _ in given}
    assert 1 << level <= view["t1"] - view["t0"] < 2 << level
    indices = [index for _, index in given]
    assert indices == list(range(indices[0], indices[-1] + 1))
    assert indices[0] << level <= view["t0"] < (indices[0] + 1) << level
    assert indices[-1] << level <= view["t1"] < (indices[-1] + 1) << level


def test_an_address_of_a_view_gets_the_overview(admitted: Client) -> None:
    """Which stands in until that view's tiles are there."""
    found = first(admitted.get("/timeline?run=before&t0=5&t1=9")[1])
    assert found is not None
    meta = json.loads(admitted.get("/api/meta?run=before")[1])
    assert places(found["tiles"]) == [(meta["level"], 0)]


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (None, (23, [0])),
        ({"t0": 4_200_000, "t1": 5_300_000}, (20, [4, 5])),
        ({"t0": -500, "t1": 1_048_577}, (20, [0, 1])),
        ({"t0": 6_900_000, "t1": 7_100_000}, (17, [52, 53])),  # the run ends in it
        ({"t0": 10, "t1": 20}, (16, [0])),  # no finer level is there
    ],
)
def test_the_tiles_are_those_of_the_view(
    view: dict[str, int] | None, expected: tuple[int, list[int]]
) -> None:
    """Of a run of 7 ms: as the timeline's own script counts them."""
    store = store_of(StepRows.build(1, step=[1], start_ns=[0], end_ns=[7_000_000]))
    level, indices = first_tiles(store, view, asked=False)
    assert (level, list(indices)) == expected
    assert first_tiles(store, view, asked=True) == (23, range(1))


def test_other_pages_have_the_scripts_alone(admitted: Client) -> None:
    """So has one that compares, and one of a run that nobody knows."""
    for path in ("/?run=before", "/timeline?run=before&with=x", "/timeline?run=none"):
        status, page = admitted.get(path)
        assert status == 200
        assert first(page) is None
        assert b"timeline.js?" in page
        # Beside Dash's own scripts, but where the timeline is what is shown.
        assert (b" defer " in page) == (not path.startswith("/timeline"))


def test_the_scripts_are_kept_by_name(admitted: Client) -> None:
    """For a year: another text has another name."""
    name = re.search(rb"timeline\.js\?([0-9a-f]{16})", admitted.get("/timeline")[1])
    assert name is not None
    with admitted.http.get("/timeline.js") as answer:
        assert answer.mimetype == "text/javascript"
        assert answer.headers["Cache-Control"].endswith("immutable")
        assert b"fd-first" in answer.data
