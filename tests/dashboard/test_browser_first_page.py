"""In a real browser: the page that comes with an address, and what takes its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
pytest.importorskip("playwright", reason="needs playwright, and Chromium")

from tests.dashboard.conftest import Served
from tests.dashboard.visits import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

CHARTS = ("collectives", "ranks", "memory")
PAGES = ("", "units", *CHARTS, "explain")
NEAR = 3.0
"""Pixels by which a mark may move when plotly's takes its place."""

# Where plotly's marks are: of bars and boxes, and the middles of points.
MARKS = """(where) => {
  const box = (node) => {
    const { left, top, width, height } = node.getBoundingClientRect();
    return [left, top + scrollY, width, height];
  };
  const text = (node) => node.textContent;
  const middle = ([x, y, w, h]) => [x + w / 2, y + h / 2];
  const inside = (kinds) => kinds.map((kind) => `${where} ${kind}`).join();
  const all = (kinds) => [...document.querySelectorAll(inside(kinds))];
  return {
    bars: all([".barlayer .point path", ".area > svg > rect:not([stroke])"]).map(box),
    points: all([".scatterlayer .point", ".area > svg > circle", ".area .mark path"])
      .map(box).map(middle),
    areas: all([".bglayer .bg", ".area:not(:has(> .z)) > svg"]).map(box),
    cells: all([".heatmap-label", ".cell"]).map(text),
    ticks: all([".xtick text", ".x2tick text", ".area > .x"]).map(text),
    levels: all([".ytick text", ".y2tick text", ".area > .y"]).map(text),
  };
}"""


@contextmanager
def admitted(browser: Browser, served: Served, **given: Any) -> Iterator[Page]:
    """A page of a browser that has the cookie, and the run is open."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, **given)
    page = context.new_page()
    page.goto(f"{served.base}assets/style.css?token={served.token}")
    yield page
    context.close()


@contextmanager
def without_dash(browser: Browser, served: Served) -> Iterator[Page]:
    """A page on which Dash never starts."""
    with admitted(browser, served) as page:
        page.route("**/_dash-component-suites/**", lambda route: route.abort())
        yield page


def words(page: Page, where: str) -> list[str]:
    """A page's words, without those of its charts and what they are headed by."""
    text: str = page.evaluate(
        """(where) => {
          const copy = document.querySelector(where).cloneNode(true);
          const charts = copy.querySelectorAll(".still, .dash-graph");
          charts.forEach((chart) => chart.remove());
          return copy.textContent;
        }""",
        where,
    )
    return text.split()


def open_run(visit: Visit) -> None:
    """Until the run is open, and the pages are made."""
    for page in PAGES:
        visit.open(f"{page}?run=before")
        visit.until("!document.querySelector('#first-page')")


def test_the_same_words_come_first(visit: Visit, browser: Browser) -> None:
    """Before Dash, on every page; nothing of the first page is left after it."""
    open_run(visit)
    for page in PAGES:
        with without_dash(browser, visit.served) as first:
            first.goto(f"{visit.served.base}{page}?run=before")
            before = words(first, "#first-page main")
        visit.open(f"{page}?run=before")
        visit.until("!document.querySelector('#first-page')")
        assert before == words(visit.page, "#page main"), page
        assert visit.page.locator("main").count() == 1


def near(one: list[list[float]], other: list[list[float]]) -> bool:
    """Whether two lists of places are the same, to a few pixels."""
    pairs = zip(sorted(one), sorted(other), strict=True)
    return all(
        abs(a - b) <= NEAR
        for left, right in pairs
        for a, b in zip(left, right, strict=True)
    )


def test_the_same_charts_come_first(visit: Visit, browser: Browser) -> None:
    """Plotly's marks, areas, ticks and numbers are where the stills' were."""
    open_run(visit)
    for page in CHARTS:
        with without_dash(browser, visit.served) as first:
            first.goto(f"{visit.served.base}{page}?run=before")
            before = first.evaluate(MARKS, "#first-page .still")
        visit.open(f"{page}?run=before")
        visit.until("!document.querySelector('#first-page')")
        after = visit.page.evaluate(MARKS, "#page .dash-graph")
        for kind in ("cells", "ticks", "levels"):
            assert sorted(before[kind]) == sorted(after[kind]), (page, kind)
        for kind in ("bars", "points", "areas"):
            assert len(before[kind]) == len(after[kind]), (page, kind)
            assert near(before[kind], after[kind]), (page, kind, before, after)
        assert any(before[kind] for kind in ("bars", "points", "cells"))


def test_without_scripts_it_is_read(visit: Visit, browser: Browser) -> None:
    """Words and charts, and that buttons do nothing."""
    open_run(visit)
    with admitted(browser, visit.served, java_script_enabled=False) as page:
        page.goto(f"{visit.served.base}memory?run=before")
        assert page.locator("#first-page h1").inner_text() == "Memory"
        assert page.locator(".still .area").first.is_visible()
        assert page.locator("noscript").is_visible()


def test_it_has_the_theme_that_is_liked(visit: Visit, browser: Browser) -> None:
    """A dark system's first page is Dash's own; after that the server knows."""
    open_run(visit)
    with admitted(browser, visit.served, color_scheme="dark") as page:
        page.goto(f"{visit.served.base}units?run=before")
        page.wait_for_selector("#page main h1")
        cookies = {c["name"]: c["value"] for c in page.context.cookies()}
        assert cookies["fsdpdoctor-theme"] == "dark-by-system"
        page.route("**/_dash-component-suites/**", lambda route: route.abort())
        page.goto(f"{visit.served.base}units?run=before")
        first = page.locator("#first-page")
        ground = first.evaluate("(node) => getComputedStyle(node).backgroundColor")
        assert (first.is_visible(), ground) == (True, "rgb(13, 17, 23)")
    with admitted(browser, visit.served, color_scheme="dark") as page:
        page.route("**/_dash-component-suites/**", lambda route: route.abort())
        page.route("**/page.js*", lambda route: route.abort())
        page.goto(f"{visit.served.base}units?run=before")
        assert not page.locator("#first-page").is_visible()


def test_what_was_opened_stays_open(visit: Visit, browser: Browser) -> None:
    """A fold that somebody opened before Dash was there."""
    open_run(visit)
    with admitted(browser, visit.served) as page:
        held: list[Any] = []
        page.route("**/_dash-layout", lambda route: held.append(route))
        page.goto(f"{visit.served.base}?run=before", wait_until="commit")
        page.locator("#first-page details > summary").last.click()
        while not held:
            page.wait_for_timeout(50)
        held[0].continue_()
        page.wait_for_selector("#first-page", state="detached")
        opened = page.locator("#page main details[open]")
        assert opened.count() == 1


def test_names_do_nothing(visit: Visit, browser: Browser) -> None:
    """Those of units that try to be something else, in words, tables and charts."""
    for page in ("", "units", "memory"):
        visit.open(f"{page}?run=hostile")
        visit.until("!document.querySelector('#first-page')")
    for page in ("", "units", "memory"):
        with without_dash(browser, visit.served) as first:
            first.goto(f"{visit.served.base}{page}?run=hostile")
            assert first.locator("#first-page main").count() == 1
            first.wait_for_timeout(100)
            assert first.evaluate("window.hacked") is None
