"""In a real browser: a run that grows under a page, and one that ends under it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
pytest.importorskip("playwright", reason="needs playwright, and Chromium")

from tests.dashboard.conftest import Served, serve_runs
from tests.dashboard.growing import Growing, writer
from tests.dashboard.test_browser_silence import PAGES
from tests.dashboard.visits import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

pytestmark = pytest.mark.slow

RUN = "run=growing"
STEPS = "document.querySelectorAll('#page .toolbar')[1].textContent"
"""The steps that the Memory page lets one choose."""
RANGE = "document.querySelector('.js-plotly-plot')._fullLayout.xaxis.range"


def opened(context: BrowserContext, served: Served, path: str) -> Visit:
    """A page in a tab of its own."""
    visit = Visit(context.new_page(), served)
    if len(context.pages) == 1:
        visit.page.goto(served.url)
    visit.open(f"{path}?{RUN}")
    return visit


def test_a_renewed_page_stays_where_it_was(
    browser: Browser, runs: dict[str, Path], tmp_path: Path
) -> None:
    """The place on the page, a map's moment, a wide table's, and a figure's zoom."""
    with writer() as process:
        growing = Growing(runs["before"], tmp_path / "growing", process.pid)
        with serve_runs(growing.folder) as served:
            context = browser.new_context(viewport={"width": 900, "height": 500})
            units = opened(context, served, "units")
            memory = opened(context, served, "memory")
            units.page.bring_to_front()
            units.page.locator(".unit-map input").fill("700")
            units.page.locator("#page .scroll").first.evaluate("e => e.scrollTo(60, 0)")
            units.page.evaluate("window.scrollTo(0, 420)")
            units.page.wait_for_timeout(200)
            before = units.page.locator("table.data tbody").inner_text()
            memory.page.bring_to_front()
            memory.until("document.querySelector('.js-plotly-plot .main-svg')")
            plot = memory.page.locator(".js-plotly-plot .nsewdrag").first
            box = plot.bounding_box()
            assert box is not None
            middle = box["y"] + box["height"] / 2
            memory.page.mouse.move(box["x"] + box["width"] * 0.3, middle)
            memory.page.mouse.down()
            memory.page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=5)
            memory.page.mouse.up()
            memory.page.wait_for_timeout(500)
            zoomed = memory.page.evaluate(RANGE)
            assert zoomed[0] > 0
            steps = memory.page.evaluate(STEPS)
            growing.grow()
            memory.until(f"{STEPS} !== {steps!r}")
            assert memory.page.evaluate(RANGE) == zoomed
            units.page.bring_to_front()
            units.until(
                "document.querySelector('table.data tbody').innerText !== "
                f"{before!r}.replaceAll('\\\\t', '\\t')"
            )
            units.page.wait_for_timeout(300)
            assert units.page.locator(".unit-map input").input_value() == "700"
            assert units.page.evaluate("window.scrollY") == 420
            wide = units.page.locator("#page .scroll").first
            assert wide.evaluate("e => e.scrollLeft") == 60
            assert [visit.wrong for visit in (units, memory)] == [[], []]
            context.close()


@pytest.mark.parametrize("end", ["done", "killed"])
def test_a_live_run_ends_under_every_page(
    browser: Browser, runs: dict[str, Path], tmp_path: Path, end: str
) -> None:
    """No page goes on saying that the run is going, whether its ranks have said that
    they ended or were killed; a record that breaks off is said to, then.
    """
    with writer() as process:
        growing = Growing(runs["before"], tmp_path / "growing", process.pid)
        with serve_runs(growing.folder) as served:
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            visits = [opened(context, served, path) for path in PAGES]
            going = "document.body.innerText.includes('is still going')"
            running = "!!document.querySelector('header .badge')"
            for visit in visits:
                visit.page.bring_to_front()
                visit.until(f"{going} && {running}")
            if end == "done":
                growing.finish()
            else:
                process.kill()
                process.wait()
            for path, visit in zip(PAGES, visits, strict=True):
                visit.page.bring_to_front()
                visit.until(f"!{going} && !{running}")
                assert visit.page.locator("#gone").count() == 0, path
                assert visit.wrong == [], path
            overview = visits[0].page.locator("main").inner_text()
            assert ("breaks off" in overview) == (end == "killed")
            visits[0].picture(f"live-ended-{end}")
            context.close()
