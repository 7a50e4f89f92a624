"""A browser's visit to the dashboard: what went wrong on it, and pictures of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.dashboard.conftest import Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PICTURES = Path(__file__).parents[2] / "test-output" / "dashboard"
PATIENCE_SECONDS = 60.0
FAULTS = Path(__file__).with_name("faults.js").read_text(encoding="utf-8")
"""Finds texts that overlap or are cut, and what does not fit the window."""


@contextmanager
def visiting(browser: Browser, served: Served) -> Iterator[Visit]:
    """An admitted browser; at the end nothing may have gone wrong."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    found = Visit(context.new_page(), served)
    found.page.goto(served.url)
    yield found
    context.close()
    found.assert_nothing_wrong()


class Visit:
    """A page, with all that went wrong on it."""

    def __init__(self, page: Page, served: Served) -> None:
        self.page = page
        self.served = served
        self.wrong: list[str] = []
        self.asked: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(message.text)

    def until(self, expression: str) -> Any:
        """Wait for JavaScript to be truthy; its value. The policy forbids eval, so
        this asks from outside, as the developer tools do.
        """
        for _ in range(int(PATIENCE_SECONDS / 0.05)):
            value = self.page.evaluate(expression)
            if value:
                return value
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never came true: {expression}; {self.wrong}")

    def open(self, path: str) -> None:
        """Go to a page of the app and wait until it is there."""
        self.page.goto(self.served.base + path)
        if path.startswith("timeline"):
            self.until("!!(window.fsdpTimeline && fsdpTimeline.sharp)")
            self.until("!document.querySelector('#first-paint') || null")
        else:
            self.page.wait_for_selector("main h1, main p", timeout=60_000)

    def timeline(self, expression: str) -> Any:
        """Something of the timeline, `t`."""
        return self.page.evaluate(
            f"(() => {{ const t = fsdpTimeline; return {expression}; }})()"
        )

    def picture(self, name: str, *, whole: bool = False) -> None:
        """Keep what is seen, or the whole page down to its end."""
        path = PICTURES / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path, full_page=whole)

    def assert_nothing_wrong(self) -> None:
        """No error or warning was logged, and nothing from elsewhere was asked for."""
        outside = [url for url in self.asked if not url.startswith(self.served.base)]
        assert [u for u in outside if not u.startswith(("blob:", "data:"))] == []
        assert self.wrong == []
