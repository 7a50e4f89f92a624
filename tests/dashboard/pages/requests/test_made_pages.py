"""A page is made once for each state of its runs."""

from __future__ import annotations

import queue
import threading

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from dash import html
from dash.development.base_component import Component

from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.pages.components import Context
from fsdpdoctor_dashboard.pages.requests import ahead, made_pages
from fsdpdoctor_dashboard.pages.requests.made_pages import KEPT, MadePages
from tests.dashboard.client import Client


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules whose pages were made, in order."""
    asked: list[str] = []

    def make(module: str, context: Context) -> Component:
        asked.append(module)
        return html.Main(module)

    monkeypatch.setattr(made_pages, "_make", make)
    return asked


@pytest.fixture
def context(library: Library) -> Context:
    """About a run."""
    return Context(base="/", theme="light", runs=(library.wait("before"),))


def test_a_page_is_made_once_for_a_state(made: list[str], context: Context) -> None:
    """The same one again; another state has another page."""
    pages = MadePages()
    first = pages.page("units", ("units", "1"), context)

    assert pages.page("units", ("units", "1"), context) is first
    assert pages.page("units", ("units", "2"), context) is not first
    assert made == ["units", "units"]


def test_what_was_looked_at_last_is_kept(made: list[str], context: Context) -> None:
    """Of too many pages the ones that were not asked for longest are forgotten."""
    pages = MadePages()
    for number in range(KEPT):
        pages.page("units", (str(number),), context)
    pages.page("units", ("0",), context)
    pages.page("units", ("new",), context)
    made.clear()
    pages.page("units", ("0",), context)
    pages.page("units", ("1",), context)

    assert made == ["units"]


def test_who_asks_while_a_page_is_made_waits(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    """It is made once, and who has no time for it goes on without."""
    may_end, asked = threading.Event(), []

    def make(module: str, context: Context) -> Component:
        asked.append(module)
        may_end.wait(10)
        return html.Main(module)

    monkeypatch.setattr(made_pages, "_make", make)
    pages, key = MadePages(), ("units", "1")
    assert pages.soon("units", key, context, 0.01) is None
    may_end.set()
    found = pages.page("units", key, context)

    assert asked == ["units"]
    assert pages.soon("units", key, context, 0.0) is found


def test_a_page_that_fails_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    """Its error is for who asks for the page by itself."""

    def fail(module: str, context: Context) -> Component:
        raise ValueError(module)

    pages = MadePages()
    with monkeypatch.context() as patch:
        patch.setattr(made_pages, "_make", fail)
        assert pages.soon("units", ("units",), context, 10) is None
        with pytest.raises(ValueError, match="units"):
            pages.page("units", ("units",), context)
    monkeypatch.setattr(made_pages, "_make", lambda module, _: html.Main(module))
    assert pages.soon("units", ("units",), context, 10) is not None


def test_pages_with_figures_are_made_ahead(made: list[str], library: Library) -> None:
    """While nobody waits, and none of a run that nobody knows."""
    client = Client(library)
    client.get("/?token=secret")
    library.wait("before")

    assert client.get("/ahead?run=none")[0] == 404
    assert made == []
    assert client.get("/ahead?run=before&theme=light")[0] == 204
    assert made == ["collectives", "ranks", "memory", "whatif"]
    client.ask(
        "page.children", url_pathname="/ranks", url_search="?run=before", theme="light"
    )
    assert len(made) == 4


def test_plotly_is_imported_while_a_browser_starts(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the address of a page that has charts, and with no other."""
    begun: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(ahead, "import_module", begun.put)
    client = Client(library)
    client.get("/?token=secret")
    for path in ("/", "/units?run=before", "/timeline?run=before"):
        assert client.get(path)[0] == 200
    assert client.get("/memory?run=before")[0] == 200

    assert begun.get(timeout=10) == "fsdpdoctor_dashboard.pages.memory"
    assert begun.empty()


def test_each_theme_has_its_page(made: list[str], library: Library) -> None:
    """A page that was made in the light is not shown in the dark."""
    client = Client(library)
    client.get("/?token=secret")
    library.wait("before")
    asked = {"url_pathname": "/timeline", "url_search": "?run=before"}
    for theme in ("light", "dark", "light"):
        client.ask("page.children", theme=theme, **asked)

    assert made == ["timeline", "timeline"]
