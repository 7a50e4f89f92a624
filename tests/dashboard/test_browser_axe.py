"""In a real browser: what axe-core finds on the pages for those who see or point less.

axe-core comes by npm (`npm ci`), for this check alone; without it there is no check.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
pytest.importorskip("playwright", reason="needs playwright, and Chromium")

from fsdpdoctor.renderers.html import render
from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.run_registry import Entry, Loading, meta_of, open_entry
from fsdpdoctor_dashboard.server.standalone_page import timeline_page
from tests.dashboard.conftest import Served
from tests.dashboard.visits import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm ci"),
]

PAGES = {
    "runs": "runs",
    "overview": "?run=before",
    "timeline": "timeline?run=before",
    "units": "units?run=before",
    "collectives": "collectives?run=before",
    "ranks": "ranks?run=before",
    "memory": "memory?run=before",
    "whatif": "whatif?run=before",
    "explain": "explain?run=before&code=FD101",
    "words": "explain?run=before",
    "comparison": "?run=before&with=after",
    "units of two": "units?run=before&with=after",
}

SERIOUS = """async () => {
  // Dash's own lists of options: a box within an option, which is not ours to change.
  const exclude = [[".dash-options-list-option"], [".dash-dropdown-focus-target"]];
  const found = await axe.run({ exclude }, { resultTypes: ["violations"] });
  return found.violations
    .filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => [each.id,
      each.nodes.slice(0, 3).map((node) => node.html.slice(0, 160))]);
}"""


def serious(visit: Visit) -> object:
    """What axe-core calls serious or critical, with places of it."""
    visit.page.evaluate(AXE.read_text(encoding="utf-8") + "; undefined")
    return visit.page.evaluate(SERIOUS)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_serious_is_found(visit: Visit, name: str, theme: str) -> None:
    """Names, roles, contrast and order of every page, in both themes."""
    visit.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    visit.open(PAGES[name])
    visit.page.wait_for_timeout(500)
    assert serious(visit) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_is_found_in_an_open_finding(visit: Visit, theme: str) -> None:
    """Beside the timeline, with its code, its places and what it lights."""
    visit.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    visit.open("timeline?run=before")
    visit.page.locator(".side details.card summary").first.click()
    visit.until("fsdpTimeline.lit")
    assert serious(visit) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_serious_is_found_in_the_report(
    browser: Browser, runs: dict[str, Path], tmp_path: Path, theme: str
) -> None:
    """The one file, its timeline too."""
    opened = open_entry(Entry(id="before", path=runs["before"]), open_run, Loading())
    page_file = tmp_path / "report.html"
    addition = timeline_page(opened.store, meta_of(opened))
    page_file.write_text(render(opened.report, addition), encoding="utf-8")
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    found = Visit(context.new_page(), Served(base="file://", token=""))
    found.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    found.page.goto(page_file.as_uri())
    found.until("!!(window.fsdpTimeline && fsdpTimeline.sharp)")
    assert serious(found) == []
    context.close()
