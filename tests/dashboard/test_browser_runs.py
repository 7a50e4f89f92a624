"""In a real browser: the table of a folder's runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
pytest.importorskip("playwright", reason="needs playwright, and Chromium")

from tests.dashboard.conftest import serve_runs
from tests.dashboard.synthetic import Shape, write_run
from tests.dashboard.visits import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

ROWS = "#runs-table tbody tr:not([hidden]) td:first-child a"


def test_a_server_ends_while_runs_are_read(browser: Browser, tmp_path: Path) -> None:
    """Whatever its readers are at: Ctrl+C is waited for half a minute at most."""
    shape = Shape(ranks=8, layers=24, steps=40)
    large = [write_run(tmp_path / name, shape) for name in ("a", "b")]
    with serve_runs(*large) as served:
        context = browser.new_context()
        found = Visit(context.new_page(), served)
        found.page.goto(served.url)
        found.until("document.body.textContent.includes('being read')")
    context.close()


def test_runs_are_found_sorted_and_compared(visit: Visit) -> None:
    """All are read while one looks; the field finds by name, a head sorts by number,
    two ticks lead to the two side by side, and one or three to nothing.
    """
    page = visit.page
    visit.open("")
    visit.until("document.title === 'Runs - fsdpdoctor'")
    visit.until("!document.querySelector('main').textContent.includes('being read')")
    visit.picture("runs")
    assert sorted(page.locator(ROWS).all_inner_texts()) == [
        "after",
        "before",
        "hostile",
        "wide",
    ]
    page.get_by_role("columnheader", name="median step").click()
    steps = page.locator("#runs-table td:nth-child(4)")
    values = [
        float(v or 0)
        for v in steps.evaluate_all("all => all.map(e => e.dataset.value)")
    ]
    assert values == sorted(values, reverse=True)
    compare = page.locator("#compare")
    assert compare.inner_text() == "Compare: tick two"
    page.get_by_label("compare before").click()
    page.get_by_label("compare after").click()
    visit.until("document.querySelector('#compare').textContent.includes(' with ')")
    page.get_by_label("compare wide").click()
    visit.until("document.querySelector('#compare').textContent.includes('only two')")
    page.get_by_label("compare wide").click()
    visit.until("document.querySelector('#compare').textContent.includes(' with ')")
    page.locator(".toolbar input").fill("before")
    assert page.locator(ROWS).all_inner_texts() == ["before"]
    compare.click()
    visit.until("document.querySelectorAll('main section h2.run').length === 2")
    shown = page.locator("main section h2.run").all_inner_texts()
    assert sorted(shown) == ["after", "before"]
