"""In a real browser: what the timeline opens on, and findings that open beside it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
pytest.importorskip("playwright", reason="needs playwright, and Chromium")

from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.run_registry import (
    Entry,
    Loading,
    OpenRun,
    open_entry,
)
from tests.dashboard.conftest import Served, serve_runs
from tests.dashboard.visits import Visit, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

GALLERY = Path(__file__).parents[2] / "traces"
KILLED = "killed-rank"
WITHOUT_UNITS = "ddp-instead"
WITHOUT_SAMPLES = "device-offload-pageable"
CARDS = ".side details.card"
STATUS = "document.querySelector('.fd-status').textContent"
LIT = "fsdpTimeline.lit && fsdpTimeline.lit.stretches"


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A run of two ranks, one of which was killed; and runs that show little."""
    root = tmp_path_factory.mktemp("gallery")
    names = (KILLED, WITHOUT_UNITS, WITHOUT_SAMPLES)
    for name in names:
        shutil.copytree(GALLERY / name, root / name)
    with serve_runs(*(root / name for name in names)) as server:
        yield server


@pytest.fixture
def killed(browser: Browser, gallery: Served) -> Iterator[Visit]:
    """An admitted browser on its timeline."""
    with visiting(browser, gallery) as found:
        found.open(f"timeline?run={KILLED}")
        found.until(f"document.querySelectorAll('{CARDS}').length > 4")
        yield found


@pytest.fixture(scope="module")
def opened() -> OpenRun:
    """The same run, as the pages have it."""
    return open_entry(Entry(id=KILLED, path=GALLERY / KILLED), open_run, Loading())


def view(visit: Visit) -> Any:
    """What the timeline shows."""
    return visit.timeline("[Math.round(t.view.t0), Math.round(t.view.t1)]")


def test_it_opens_on_a_step_like_most(killed: Visit, opened: OpenRun) -> None:
    """Says which and how long, and that no longer once something else is shown."""
    start = opened.whole["start"]
    assert view(killed) == [start["t0"], start["t1"]]
    assert killed.page.evaluate(STATUS).startswith("step 5 (339 ms), of the middle")
    killed.until("document.querySelector('.fd-step').textContent === '5 (3 of 4)'")
    killed.page.keyboard.press("0")
    killed.until(f"{STATUS} === ''")
    killed.until("document.querySelector('.fd-step').textContent === '3 - 6'")
    # What stands in for finer tiles is there by now, for every rank.
    killed.until(
        "fsdpTimeline.tracks.every((k) => fsdpTimeline.loader.has("
        "k.source, k.rank, false, k.source.meta.level, 0))"
    )


def test_a_bar_of_the_minimap_shows_its_step(killed: Visit, opened: OpenRun) -> None:
    """Under the mouse it says how much longer the step was, and a click fills the
    picture with it.
    """
    step, start, end, length = opened.whole["steps"]["bars"][1]
    assert (step, length) == (4, 453_280_921)
    box = killed.page.locator(".fd-stage").bounding_box()
    assert box is not None
    x = box["x"] + killed.timeline(f"t.minimap.x({(start + end) / 2})")
    killed.page.mouse.move(x, box["y"] + 8)
    tip = killed.page.locator(".fd-tip")
    assert tip.inner_text().split("\n") == [
        "step 4: 453 ms",
        "33.6 % longer than a usual step (339 ms)",
        "click shows it",
    ]
    killed.page.mouse.click(x, box["y"] + 8)
    room = round((end - start) * 0.02)
    assert view(killed) == pytest.approx([start - room, end + room], abs=1)
    assert killed.page.evaluate(STATUS) == "step 4: 453 ms"


def test_a_finding_opens_beside_the_picture(killed: Visit) -> None:
    """Its words and what to try; its places, one after the other; and all that it is
    about, lit on both ranks. Another one closes it, and closing puts the light out.
    """
    cards = killed.page.locator(CARDS)
    card = cards.nth(1)
    assert not card.locator(".inside").is_visible()
    card.locator("summary").click()
    killed.until(LIT)
    assert "compute waits 26.3 ms per step" in card.inner_text()
    assert "A larger micro-batch" in card.inner_text()
    place = card.locator(".places [role=status]")
    assert place.inner_text() == "place 1 of 3"
    killed.page.wait_for_timeout(400)  # it has glided there
    at = card.get_attribute("data-places").split(";")[0]  # type: ignore[union-attr]
    rank, begin, end = map(int, at.split(","))
    assert view(killed)[0] < begin < end < view(killed)[1]
    lit = killed.page.evaluate(LIT)
    assert [rank, begin, end] in lit
    assert {one for one, _, _ in lit} == {0, 1}
    before = view(killed)
    card.locator("[data-place='1']").click()
    killed.page.wait_for_timeout(400)
    assert place.inner_text() == "place 2 of 3"
    assert view(killed) != before
    for _ in range(2):
        card.locator("[data-place='-1']").click()
    assert place.inner_text() == "place 3 of 3"
    killed.picture("finding-in-place")

    cards.nth(3).locator("summary").click()
    killed.until(f"JSON.stringify({LIT}) !== '{_packed(lit)}'")
    assert not card.locator(".inside").is_visible()
    assert cards.nth(3).locator(".inside").is_visible()
    cards.nth(3).locator("summary").click()
    killed.until("fsdpTimeline.lit === null")


def _packed(lit: list[list[int]]) -> str:
    return "[" + ",".join(f"[{a},{b},{c}]" for a, b, c in lit) + "]"


def test_an_open_finding_is_there_after_another_page(killed: Visit) -> None:
    """With what it lit; the view is the one that was left, not the finding's."""
    card = killed.page.locator(CARDS).nth(1)
    card.locator("summary").click()
    killed.until(LIT)
    killed.page.wait_for_timeout(400)
    killed.page.keyboard.press("0")
    killed.page.wait_for_timeout(300)
    left = view(killed)
    killed.page.locator("#nav a", has_text="Units").click()
    killed.page.wait_for_selector("table.data")
    killed.page.locator("#nav a", has_text="Timeline").click()
    killed.until(f"document.querySelectorAll('{CARDS}[open]').length === 1")
    killed.until(LIT)
    assert view(killed) == left


@pytest.mark.parametrize("finding", range(5))
def test_every_finding_has_a_place(killed: Visit, finding: int) -> None:
    """A card that opens moves the picture, or lights what is in it."""
    killed.timeline("t.setView(-5e6, -4e6)")
    before = view(killed)
    killed.page.locator(CARDS).nth(finding).locator("summary").click()
    killed.page.wait_for_timeout(400)
    after = view(killed)
    assert after != before
    width = after[1] - after[0]
    assert 1_000_000 < width < killed.timeline("t.end")


def test_the_end_of_a_rank_is_marked(killed: Visit, opened: OpenRun) -> None:
    """A line where its record breaks off, and nothing of a lane after it."""
    killed.timeline("t.fit()")
    killed.page.wait_for_timeout(300)
    ends = killed.timeline("t.tracks.map((track) => track.info.ended)")
    assert [end["words"] for end in ends] == [
        "ended by an exception",
        "its record breaks off",
    ]
    pixels = killed.timeline(
        "(() => { const k = t.tracks[1], at = t.x(k.info.ended.at);"
        " const y = t.screenY(k.boxes.find((b) => b.row === 1).y) + 3;"
        " const line = t.pen.getImageData(Math.round(at * t.ratio),"
        "   Math.round(y * t.ratio), 201 * t.ratio, 1).data;"
        " return [[...line.slice(0, 3)], [...line.slice(-4, -1)]]; })()"
    )
    assert pixels == [[0x1F, 0x23, 0x28], [0xF6, 0xF8, 0xFA]]
    killed.picture("rank-ended")


DRAWN = (
    "(() => { const pen = fsdpTimeline.pen, draw = pen.fillText; window.drawn = [];"
    " pen.fillText = function (text, ...at) {"
    " window.drawn.push(text); draw.call(this, text, ...at); }; fsdpTimeline.paint();"
    " delete pen.fillText; return window.drawn; })()"
)
"""All words of one painting."""


def test_what_is_not_there_is_said(browser: Browser, gallery: Served) -> None:
    """A record without any work, and a stretch without a sample of memory: no empty
    lanes or axes that one might take for idleness, or for a slow page.
    """
    with visiting(browser, gallery) as found:
        found.open(f"timeline?run={WITHOUT_UNITS}")
        assert (
            "The record holds no compute and no collective, only what the host did."
        ) in found.page.evaluate(DRAWN)
        found.open(f"timeline?run={WITHOUT_SAMPLES}")
        said = "no sample of memory in this stretch"
        found.until(f"{DRAWN}.includes({said!r})")
        found.timeline("t.fit()")
        found.until(f"!{DRAWN}.includes({said!r})")
        found.open(f"timeline?run={KILLED}")
        words = found.page.evaluate(DRAWN)
        assert not [each for each in words if each.startswith(("The record", "no s"))]


def test_what_cannot_be_replayed_has_no_knobs(
    browser: Browser, gallery: Served
) -> None:
    """The reason stands alone; a run that can be replayed keeps its knobs."""
    with visiting(browser, gallery) as found:
        found.open(f"whatif?run={WITHOUT_UNITS}")
        found.until("document.querySelector('.no-replay')")
        assert not found.page.locator(".whatif .knobs").is_visible()
        assert not found.page.locator("#save-plan").is_visible()
        found.open(f"whatif?run={KILLED}")
        found.until("document.querySelector('#prediction p')")
        assert found.page.locator(".whatif .knobs").is_visible()
