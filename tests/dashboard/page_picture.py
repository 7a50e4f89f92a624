"""Makes the picture of the page that the README and the documentation show.

    python -m tests.dashboard.page_picture

needs `fsdpdoctor[dashboard]`, playwright and Debian's chromium.
"""

from __future__ import annotations

from pathlib import Path

from tests.dashboard.conftest import CHROMIUM, FLAGS, serve_runs

ROOT = Path(__file__).parents[2]
RUN = ROOT / "traces" / "device-slow-wire"
PICTURE = ROOT / "docs" / "images" / "page.png"
WIDTH, HEIGHT = 1200, 740


def main() -> None:
    """Write `docs/images/page.png`."""
    from playwright.sync_api import sync_playwright

    PICTURE.parent.mkdir(exist_ok=True)
    with serve_runs(RUN) as served, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(served.url)
        page.wait_for_selector("main h1", timeout=60_000)
        page.wait_for_load_state("networkidle")
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
