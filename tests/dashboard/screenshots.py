"""Pictures of every page of many runs, to be looked at, and what is wrong on them.

    python -m tests.dashboard.screenshots OUT [--runs NAME...] [--pages PAGE...]
        [--widths 1440 1024 390] [--themes light dark]

One server shows them all: cases of the gallery, public traces where they are beside the
project, and synthetic runs of many ranks. Each picture is a whole page, down to its
end; texts that overlap, are cut, or do not fit are printed, and so is what a browser
complains of. Needs `fsdpdoctor[dashboard]`, playwright and Debian's chromium.
"""

# ruff: noqa: T201 - it prints what it found

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpdoctor.importers.reader.trace_cache import FOLDER_VARIABLE
from tests.dashboard.conftest import CHROMIUM, FLAGS, Served, serve_runs
from tests.dashboard.synthetic import Shape, write_run
from tests.dashboard.visits import FAULTS, Visit
from tests.importers.real_traces import FOLDER

if TYPE_CHECKING:
    from playwright.sync_api import Browser

GALLERY = Path(__file__).parents[2] / "traces"
PAGES = ("runs", "", "timeline", "units", "collectives", "ranks", "memory", "whatif")
CASES = (
    *("device-slow-wire", "exposed-all-gather", "garbage-every-step", "killed-rank"),
    *("healthy-hsdp", "ddp-instead", "device-busy-host"),
)
TRACES = ("dlrm_8ranks", "mi300x_ddp", "sampled_2of128")
MANY_RANKS = (64, 512)
WIDTHS = {1440: 900, 1024: 768, 390: 844}
"""Windows, by width."""


def paths(root: Path) -> Iterator[Path]:
    """The runs, where they are."""
    yield from (GALLERY / case for case in CASES)
    yield from (FOLDER / name for name in TRACES if (FOLDER / name).exists())
    for ranks in MANY_RANKS:
        shape = Shape(ranks=ranks, layers=4, steps=4, kernels=2)
        yield write_run(root / f"ranks-{ranks}", shape)


def settle(visit: Visit, page: str) -> None:
    """Until all of a page is drawn."""
    visit.until("!document.querySelector('#page .loading') || null")
    visit.until(
        "[...document.querySelectorAll('.dash-graph')]"
        ".every(graph => graph.querySelector('.main-svg'))"
    )
    if page == "whatif":
        visit.until("document.querySelector('#prediction p, #prediction h2')")
    if page == "timeline":
        visit.until(
            "(window.fsdpTimeline && fsdpTimeline.sharp)"
            " || document.querySelector('#page main p')"
        )
    visit.page.wait_for_timeout(400)


def look(visit: Visit, out: Path, name: str, page: str) -> None:
    """Keep one page's picture, and say what is wrong on it."""
    settle(visit, page)
    visit.page.screenshot(path=out / f"{name}.png", full_page=True)
    for fault in visit.page.evaluate(FAULTS):
        print(f"{name}: {fault}")
    for words in visit.wrong:
        print(f"{name}: {words}")
    visit.wrong.clear()


def pictures(browser: Browser, served: Served, given: argparse.Namespace) -> None:
    """All pages of all runs, in every width and theme."""
    from playwright.sync_api import TimeoutError

    for width in given.widths:
        for theme in given.themes:
            context = browser.new_context(
                viewport={"width": width, "height": WIDTHS[width]}, color_scheme=theme
            )
            visit = Visit(context.new_page(), served)
            visit.page.goto(served.url)
            for run in given.runs:
                for page in given.pages:
                    if page == "runs" and run != given.runs[0]:
                        continue
                    name = f"{run}-{page or 'overview'}-{theme}-{width}"
                    visit.page.goto(f"{served.base}{page}?run={run}")
                    try:
                        visit.page.wait_for_selector("main h1, main p", timeout=60_000)
                        look(visit, given.out, name, page)
                    except (AssertionError, TimeoutError) as error:
                        print(f"{name}: not drawn: {error}")
            context.close()


def main() -> None:
    """Make them."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", nargs="+")
    parser.add_argument("--pages", nargs="+", choices=PAGES, default=PAGES)
    parser.add_argument("--widths", nargs="+", type=int, default=[*WIDTHS])
    parser.add_argument("--themes", nargs="+", default=["light", "dark"])
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        os.environ[FOLDER_VARIABLE] = str(Path(folder) / "cache")
        found = [*paths(Path(folder))]
        given.runs = given.runs or [path.name for path in found]
        with serve_runs(*(p for p in found if p.name in given.runs)) as served:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
            pictures(browser, served, given)
            browser.close()
    print(f"took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
