"""In a real browser: what is said where nobody answers, or nothing can be shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
pytest.importorskip("playwright", reason="needs playwright, and Chromium")

from tests.dashboard.conftest import Served, serve_runs
from tests.dashboard.visits import FAULTS, Visit, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

PAGES = ("", "units", "collectives", "ranks", "memory", "whatif", "timeline")


def test_a_server_that_is_gone_is_said_on_every_page(
    browser: Browser, runs: dict[str, Path]
) -> None:
    """Its address and what it shows stay, and nothing is asked any more."""
    with serve_runs(runs["before"]) as served:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        visits: list[Visit] = []
        for path in (*PAGES, "explain"):
            visit = Visit(context.new_page(), served)
            if not visits:
                visit.page.goto(served.url)
            visit.open(f"{path}?run=before")
            visits.append(visit)
    for path, visit in zip((*PAGES, "explain"), visits, strict=True):
        before = visit.page.url.split("?")[0]
        words = visit.page.locator("#page").inner_text()
        visit.page.bring_to_front()
        visit.page.locator("#nav a").nth(3 if path != "collectives" else 2).click(
            force=True, no_wait_after=True
        )
        visit.until("document.querySelector('#gone')")
        assert visit.page.get_by_role("alert").inner_text().startswith("The dashboard")
        assert visit.page.url.split("?")[0] == before, path
        assert visit.page.locator("#nav").get_attribute("inert") is not None
        knobs = visit.page.locator(".whatif")
        assert knobs.count() == 0 or knobs.get_attribute("inert") is not None
        address = visit.page.url
        for link in (visit.page.locator("#brand"), visit.page.locator("#page a[href]")):
            if link.count():
                link.first.click(force=True, no_wait_after=True)
        visit.page.wait_for_timeout(200)
        assert visit.page.url == address, path
        if path not in ("timeline", "whatif"):  # what is drawn has no words to keep
            assert visit.page.locator("#page").inner_text() == words, path
    visits[0].picture("gone-overview")
    context.close()


def test_what_cannot_be_read_is_said_and_not_drawn(
    browser: Browser, runs: dict[str, Path], tmp_path: Path
) -> None:
    """Such a run's timeline page has the reason in full, and no black picture."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    with serve_runs(runs["before"], broken) as served:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        visit = Visit(context.new_page(), served)
        visit.page.goto(served.url)
        for run, words in (("broken", "damaged"), ("nosuchrun", "no run")):
            visit.page.goto(f"{served.base}timeline?run={run}")
            visit.until("!document.querySelector('#first-paint') || null")
            visit.until("document.querySelector('#page main p')")
            assert words in visit.page.locator("#page main").inner_text()
            assert visit.page.locator(".fd-timeline").count() == 0
        context.close()


def test_a_telephone_shows_the_timeline_and_its_findings(
    browser: Browser, served: Served
) -> None:
    """Nothing is wider than the window, where one is is in sight, and the list of keys
    takes the focus and is left by a click beside it.
    """
    with visiting(browser, served) as visit:
        visit.page.set_viewport_size({"width": 390, "height": 844})
        visit.open("timeline?run=before")
        visit.until("document.querySelector('#nav a[aria-current=page]')")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert visit.page.locator(".side").is_visible()
        here = visit.page.locator("#nav a[aria-current=page]").bounding_box()
        assert here is not None
        assert 0 <= here["x"] <= 390 - here["width"]
        visit.page.keyboard.press("?")
        assert visit.page.evaluate("document.activeElement.className") == "fd-help"
        visit.page.locator("#brand").hover()
        visit.page.locator("header").click(position={"x": 150, "y": 10})
        assert visit.page.locator(".fd-help").count() == 0


@pytest.mark.parametrize("width", [390, 720])
def test_no_page_is_wider_than_its_window(
    browser: Browser, served: Served, width: int
) -> None:
    """On a telephone, and on a screen at 200 %: pages and words fit, and where one is
    stands in sight among the pages.
    """
    with visiting(browser, served) as visit:
        visit.page.set_viewport_size({"width": width, "height": 700})
        for path in (*PAGES, "explain"):
            visit.open(f"{path}?run=before")
            visit.until("document.querySelector('#nav a[aria-current=page]')")
            visit.page.wait_for_timeout(300)
            faults = [
                fault
                for fault in visit.page.evaluate(FAULTS)
                if fault.startswith(("the page is", "beyond"))
            ]
            assert faults == [], path
            here = visit.page.locator("#nav a[aria-current=page]").bounding_box()
            assert here is not None
            assert -1 <= here["x"] <= width - here["width"] + 1, path


def test_pages_say_their_names(browser: Browser, served: Served) -> None:
    """The tab, the nav and the brand say and lead where one expects."""
    with visiting(browser, served) as visit:
        visit.open("units?run=after")
        visit.until("document.title === 'Units - after - fsdpdoctor'")
        here = visit.page.locator("#nav a[aria-current=page]")
        assert here.all_inner_texts() == ["Units"]
        visit.page.locator("#runs summary").click()
        visit.page.keyboard.press("Escape")
        assert visit.page.locator("#runs details[open]").count() == 0
        visit.page.locator("#runs summary").click()
        visit.page.locator("h1").click()
        assert visit.page.locator("#runs details[open]").count() == 0
        visit.page.locator("#brand").click()
        visit.until("document.title === 'Overview - after - fsdpdoctor'")
        assert "run=after" in visit.page.url
