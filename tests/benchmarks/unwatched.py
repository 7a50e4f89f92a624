"""A page that no debugger looks at, as a reader's is.

Playwright, as the developer tools do, asks a page for a stack of every exception. A
script that throws and catches while it begins then pays for it: plotly's six throws
took 170 ms of a processor and not 20, nearly all of it to find the lines of a function
that is a megabyte long. So first paints are measured where playwright is not attached.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.dashboard.conftest import CHROMIUM, FLAGS

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Playwright

PATIENCE_SECONDS = 60.0
ASK_EVERY_S = 0.02


class UnwatchedPage:
    """One page of a browser, by the few questions that need nothing to be enabled."""

    def __init__(self, browser: CDPSession) -> None:
        self._browser = browser
        made = browser.send("Target.createTarget", {"url": "about:blank"})
        given = {"targetId": made["targetId"], "flatten": False}
        self._session = browser.send("Target.attachToTarget", given)["sessionId"]
        self._answers: dict[int, dict[str, Any]] = {}
        self._asked = 0
        browser.on("Target.receivedMessageFromTarget", self._received)

    def _received(self, event: dict[str, str]) -> None:
        answer = json.loads(event["message"])
        if "id" in answer:
            self._answers[answer["id"]] = answer.get("result", {})

    def _ask(self, method: str, **given: object) -> dict[str, Any]:
        self._asked += 1
        message = json.dumps({"id": self._asked, "method": method, "params": given})
        sent = {"sessionId": self._session, "message": message}
        self._browser.send("Target.sendMessageToTarget", sent)
        ends = time.monotonic() + PATIENCE_SECONDS
        while self._asked not in self._answers:
            if time.monotonic() > ends:
                raise TimeoutError(method)
            self._browser.send("Target.getTargets")  # events come with answers
        return self._answers.pop(self._asked)

    def first(self, script: str) -> None:
        """A script that runs before each page's own."""
        self._ask("Page.enable")
        self._ask("Page.addScriptToEvaluateOnNewDocument", source=script)

    def go(self, url: str) -> None:
        """Ask for a page, and wait for nothing."""
        self._ask("Page.navigate", url=url)

    def until(self, expression: str) -> Any:
        """An expression's value, once it has one."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < ends:
            given = {"expression": expression, "returnByValue": True}
            answer = self._ask("Runtime.evaluate", **given)
            if value := answer.get("result", {}).get("value"):
                return value
            time.sleep(ASK_EVERY_S)
        raise TimeoutError(expression)


@contextmanager
def unwatched_page(driver: Playwright) -> Iterator[UnwatchedPage]:
    """A page of a browser that has seen nothing."""
    started = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
    yield UnwatchedPage(started.new_browser_cdp_session())
    started.close()
