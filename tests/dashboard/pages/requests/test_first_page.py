"""A page's HTML in the answer to its address."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from dash import dcc, html

from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard import app
from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.pages.components import with_tip
from fsdpdoctor_dashboard.pages.requests.first_page import first_page, html_of
from tests.dashboard.client import Client


def test_a_component_is_its_element() -> None:
    """Attributes by their names in HTML; an id is the page's own, that comes."""
    part = html.Td(
        [
            dcc.Link("a & b", href="/x?run=a&with=b", className="code-link"),
            html.Br(),
            3,
        ],
        id="cell",
        colSpan=2,
        style={"backgroundColor": "#123456", "width": "3px"},
    )

    assert html_of(part) == (
        '<td data-id="cell" colspan="2" style="background-color:#123456;width:3px">'
        '<a href="/x?run=a&amp;with=b" class="code-link">a &amp; b</a><br>3</td>'
    )


def test_a_picture_says_what_it_shows() -> None:
    """Names with hyphens, and what is a switch."""
    assert html_of(with_tip(html.I(), 'of "x"')) == (
        '<i role="img" tabindex="0" aria-label="of &quot;x&quot;" '
        'data-tip="of &quot;x&quot;"></i>'
    )
    assert html_of(html.Details(html.Summary("s"), open=True)) == (
        '<details open=""><summary>s</summary></details>'
    )


def test_what_nobody_sees_is_left_out() -> None:
    """Stores, and the frame of what is waited for."""
    parts = [dcc.Store(id="s", data=1), dcc.Loading(html.P("x")), None, "y"]

    assert html_of(parts) == "<p>x</p>y"
    assert html_of(dcc.Input(type="search")) == '<input type="search">'


def test_names_are_never_html() -> None:
    """In words, in attributes and in styles."""
    bad = "\"'><script>x</script>"
    made = html_of(html.P(bad, title=bad, style={"color": bad}))

    assert "<script>" not in made
    assert made.count('"') == 4
    assert 'data-theme="dark" data-guessed>' in first_page(
        html.Header(), html.Main(), "dark", guessed=True
    )


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr(app, "PATIENCE_S", 60.0)


def first(client: Client, path: str, cookie: str = "") -> str:
    """What comes first in the answer to an address."""
    if cookie:
        client.http.set_cookie("fsdpdoctor-theme", cookie)
    text = client.get(path)[1].decode()
    found = re.search(
        r'<div id="first-page".*(?=<script src="/timeline.js)', text, re.S
    )
    return found[0] if found else ""


@pytest.mark.parametrize(
    "page", ["", "units", "collectives", "ranks", "memory", "explain"]
)
def test_a_page_comes_with_its_address(admitted: Client, page: str) -> None:
    """Its words, its head with where one is, and its charts."""
    text = first(admitted, f"/{page}?run=before")

    assert 'data-theme="light" data-guessed>' in text
    assert "<main><h1>" in text or "<main><div" in text
    assert text.count('class="here"') == 1
    charts = page in ("collectives", "ranks", "memory")
    assert ('class="still"' in text) == charts


def test_it_comes_in_the_theme_that_is_liked(admitted: Client) -> None:
    """What a cookie says, and no more than that: it may say anything."""
    assert 'data-theme="dark">' in first(admitted, "/ranks?run=before", "dark")
    by_system = first(admitted, "/ranks?run=before", "dark-by-system")
    assert 'data-theme="dark" data-guessed>' in by_system
    other = first(admitted, "/ranks?run=before", 'x"><script>')
    assert 'data-theme="light" data-guessed>' in other
    assert "<script>" not in other


def test_two_runs_come_beside_each_other(admitted: Client, library: Library) -> None:
    """Where both are open."""
    library.wait("after")
    text = first(admitted, "/ranks?run=before&with=after")

    assert text.count("<section>") == 2


@pytest.mark.parametrize("path", ["timeline", "whatif", "runs", "?run=none", "nowhere"])
def test_what_is_not_whole_does_not_come(admitted: Client, path: str) -> None:
    """What is drawn or asked for by the page itself, and what is not there."""
    assert first(admitted, f"/{path}") == ""


def test_nobody_waits_for_a_run_that_is_read(runs: dict[str, Path]) -> None:
    """Or for a page that takes long: Dash asks for it, as for any other."""
    client = Client(Library([runs["wide"]], open_run))
    client.get("/?token=secret")

    assert first(client, "/units?run=wide") == ""
