"""How fast pages follow each other, beside an empty Dash page, in turns.

    python -m tests.benchmarks.dashboard_pages [--rounds 5] [--write]

Headless Chromium and one run of several ranks. Each round: an empty Dash page in a new
browser; a page with charts that is opened by its address in a new browser; and one in
which the Overview is read for a moment and then each page is clicked twice. A page is
there when its words and all of its charts are drawn. One that is opened by its address
comes with stills of them: it is there in the first frame that has these, and answers
to the mouse when plotly's charts are in their places. Those that are opened by their
address are nobody's debugger's: see unwatched.py. Medians of all rounds at the end,
with what an empty page took beside them: a busy machine is busy for both.
"""

# ruff: noqa: T201 - it prints a table

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpdoctor.importers.reader.trace_cache import FOLDER_VARIABLE
from tests.benchmarks.dashboard_browser import (
    SEEN,
    dash_page,
    empty,
    median,
    new_browser,
)
from tests.benchmarks.unwatched import unwatched_page
from tests.dashboard.conftest import Served, serve_runs
from tests.dashboard.synthetic import Shape, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Page, Playwright

PAGES = ("Units", "Collectives", "Ranks", "Memory", "What-if", "Timeline", "Overview")
TWICE = 2
READING_MS = 4_000
"""The first page is looked at for so long before another is asked for."""
CHANGE_MS = 300
FIRST_CHART = 1.5
"""Of an empty Dash page's time."""
RESULTS = Path(__file__).parent / "dashboard-pages-results.md"

THERE = """(name) => {
  const here = document.querySelector("#nav a[aria-current=page]");
  if (here?.textContent !== name) return false;
  if (name === "Timeline") {
    return Boolean(document.querySelector("#page .fd-host") && window.fsdpTimeline
      && !fsdpTimeline.gone && fsdpTimeline.painted);
  }
  const title = document.querySelector("#page main h1")?.textContent || "";
  const itself = name === "Overview" ? document.querySelector("#page .verdict")
    : title.startsWith(name === "What-if" ? "What if" : name);
  const graphs = [...document.querySelectorAll("#page .dash-graph")];
  return Boolean(itself) && graphs.every((graph) => graph.querySelector(".main-svg"));
}"""

CLICK = f"""(name) => {{
  const there = {THERE};
  const links = [...document.querySelectorAll("#nav a")];
  const link = links.find((a) => a.textContent === name);
  const began = performance.now();
  link.click();
  return new Promise((done) => {{
    const look = () => {{
      if (there(name)) requestAnimationFrame(() => done(performance.now() - began));
      else setTimeout(look, 4);
    }};
    look();
  }});
}}"""

# Asked in each frame: what is there in one is painted in it.
FIRST = f"""
const there = {THERE};
const look = () => {{
  const still = document.querySelector("#first-page .still .area path");
  const whole = document.querySelector("#page main .main-svg") && there("Memory")
    && !document.querySelector("#first-page");
  if (still || whole) window.seenAt ||= performance.now();
  if (whole) window.aliveAt = performance.now();
  else requestAnimationFrame(look);
}};
requestAnimationFrame(look);
"""

Table = dict[str, list[float]]
"""By what was measured, in ms."""


def clicks(page: Page, found: Table) -> None:
    """Each page by a click, and again; the first with a chart by itself."""
    for turn in range(TWICE):
        for name in PAGES:
            took = page.evaluate(CLICK, name)
            first = turn == 0 and name == "Collectives"
            found["first chart, clicked" if first else name].append(took)
            page.wait_for_timeout(300)


def one_round(driver: Playwright, served: Served, empty_url: str, found: Table) -> None:
    """All that is measured, once."""
    with unwatched_page(driver) as page:
        page.first(SEEN % "#ready")
        page.go(empty_url)
        found["empty Dash page"].append(page.until("window.seenAt"))
    with unwatched_page(driver) as page:
        page.go(f"{served.base}assets/style.css?token={served.token}")
        page.until("document.readyState === 'complete'")
        page.first(FIRST)
        for name in ("first chart, by its address", "the same, warm"):
            page.go(f"{served.base}memory")
            found[name].append(page.until("window.seenAt"))
            found[f"{name}, answers"].append(page.until("window.aliveAt"))
            page.go("about:blank")
            page.until("location.href === 'about:blank'")
    with new_browser(driver) as browser:
        clicked = browser.new_page()
        clicked.goto(served.url)
        clicked.wait_for_selector(".verdict")
        clicked.wait_for_timeout(READING_MS)
        clicks(clicked, found)


def report(found: Table, loads: list[float]) -> Iterator[str]:
    """The table, and what was to be reached."""
    blank = median(found["empty Dash page"])
    yield f"{os.cpu_count()} processors, load {min(loads):.1f} to {max(loads):.1f}"
    yield f"{'':<36}{'median ms':>10}{'least':>8}{'of an empty page':>18}"
    for name, took in found.items():
        middle = median(took)
        yield f"{name:<36}{middle:>10.0f}{min(took):>8.0f}{middle / blank:>18.2f}"
    changes = [ms for name in PAGES for ms in found[name]]
    met = "met   " if median(changes) < CHANGE_MS else "MISSED"
    yield f"{met}  page changes: median {median(changes):.0f} ms (below {CHANGE_MS} ms)"
    for name in ("first chart, clicked", "first chart, by its address"):
        share = median(found[name]) / blank
        met = "met   " if share <= FIRST_CHART else "MISSED"
        yield f"{met}  {name}: {share:.2f}x an empty Dash page (1.5x)"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"keep it: {RESULTS.name}")
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    found: Table = defaultdict(list)
    loads = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        os.environ[FOLDER_VARIABLE] = str(Path(folder) / "cache")
        run = write_run(Path(folder) / "run", Shape(ranks=4, layers=8, steps=6))
        with serve_runs(run) as served, dash_page(empty) as empty_url:
            for _ in range(given.rounds):
                one_round(driver, served, empty_url, found)
                loads.append(os.getloadavg()[0])
    text = "\n".join(report(found, loads))
    print(text)
    if given.write:
        _keep(text)


def _keep(text: str) -> None:
    RESULTS.write_text(
        "# From page to page, measured\n\n"
        "`python -m tests.benchmarks.dashboard_pages --write` made this page; what is "
        "measured stands in it.\n\"Answers\": plotly's chart is in the still's place "
        "and painted.\n\n"
        f"{time.strftime('%Y-%m-%d', time.gmtime())}\n\n```text\n{text}\n```\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
