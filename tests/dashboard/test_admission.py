"""Who is let in, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")


from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.server import api

if TYPE_CHECKING:
    pass
from tests.dashboard.client import Client

ROUTES = (
    "/",
    "/timeline",
    "/units",
    "/_dash-layout",
    "/_dash-dependencies",
    "/assets/style.css",
    "/_dash-component-suites/fsdpdoctor_dashboard/timeline/dash_component.js",
    "/timeline.js",
    "/page.js",
    "/style.css",
    *(f"/api/{name}?run=before" for name in ("meta", "tile", "area", "span", "live")),
)


@pytest.mark.parametrize("path", ROUTES)
def test_nothing_is_shown_without_the_token(library: Library, path: str) -> None:
    """Every route, Dash's own included, is refused; a wrong token helps nobody."""
    client = Client(library)
    joint = "&" if "?" in path else "?"

    assert client.get(path)[0] == 403
    assert client.get(f"{path}{joint}token=wrong")[0] == 403
    assert client.http.post("/_dash-update-component", json={}).status_code == 403


def test_the_token_becomes_a_cookie_that_scripts_cannot_read(library: Library) -> None:
    """The address loses the token; the cookie is HttpOnly and SameSite=Strict."""
    client = Client(library)
    answer = client.http.get("/timeline?token=secret&run=before")

    assert answer.status_code == 303
    assert answer.headers["Location"] == "/timeline?run=before"
    away = client.http.get(
        "/?token=secret", environ_overrides={"PATH_INFO": "//evil.example/"}
    )
    assert away.headers["Location"] == "/evil.example/"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.get("/timeline?run=before")[0] == 200


def test_a_foreign_host_name_is_refused(admitted: Client) -> None:
    """A page of another site cannot reach it by giving its own name our address."""
    assert admitted.get("/api/meta?run=before", Host="evil.example")[0] == 400
    assert admitted.get("/", Host="evil.example:8050")[0] == 400
    assert admitted.get("/", Host="localhost:8050")[0] == 200


@pytest.mark.parametrize(
    "name",
    ["../before", "..%2f..%2fetc", "/etc/passwd", "nothing", "", "before/..", "\0"],
)
def test_a_run_is_only_ever_looked_up(admitted: Client, name: str) -> None:
    """Paths in place of ids are 404, whatever they would lead to."""
    status, body = admitted.get(f"/api/meta?run={name}")

    assert status == 404
    assert json.loads(body) == {"error": "there is no run with this id"}


@pytest.mark.parametrize(
    "query",
    [
        "tile?level=x&index=0",
        "tile?level=3&index=0",
        "tile?level=20&index=-1",
        "tile?level=63&index=0",
        "span?rank=0&series=3&span=99999999",
        "span?rank=0&series=77&span=0",
        "memory?rank=9&level=20&index=0",
        f"under?rank=0&row=1&t0=0&t1={10**30}",
        "area?t0=0",
        f"area?t0=0&t1=9&ranks={10**30}",
        f"find?ranks=0&time=0&units={1 << 63}",
        f"find?ranks=0&time=0&units={'1' * 5000}",
        f"exposed?time=0&ranks={'0,' * 20_001}",
    ],
)
def test_a_bad_question_is_told_so(admitted: Client, query: str) -> None:
    """Numbers out of range are 400 with a sentence, never a traceback."""
    joint = "&" if "?" in query else "?"
    status, body = admitted.get(f"/api/{query}{joint}run=before")

    assert status == 400
    assert set(json.loads(body)) == {"error"}


@pytest.mark.parametrize(
    "question",
    ["area?t0=0&t1=9000000", "exposed?time=0", "find?time=0&units=1,1", "tile?{tile}"],
)
def test_a_rank_that_is_named_often_counts_once(
    admitted: Client, question: str
) -> None:
    """The answer, and the work for it, is that of naming it once."""
    level = json.loads(admitted.get("/api/meta?run=before")[1])["level"]
    path = f"/api/{question.format(tile=f'level={level}&index=0')}&run=before"

    once = admitted.get(f"{path}&ranks=1,0")
    often = admitted.get(f"{path}&ranks=1,0{',1,0' * 5000}")

    assert once[0] == 200
    assert often == once


def test_the_policy_allows_no_eval_and_no_other_host(admitted: Client) -> None:
    """Scripts come from here or are known by their hash."""
    policy = admitted.http.get("/").headers["Content-Security-Policy"]
    scripts = next(p for p in policy.split("; ") if p.startswith("script-src"))

    assert "unsafe" not in scripts
    assert "http" not in policy
    assert admitted.http.get("/").headers["X-Content-Type-Options"] == "nosniff"


def test_debugging_stays_off_whatever_the_environment_says(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DASH_DEBUG turns on neither dev tools nor hot reload."""
    monkeypatch.setenv("DASH_DEBUG", "true")
    monkeypatch.setenv("DASH_HOT_RELOAD", "true")
    client = Client(library)
    client.get("/?token=secret")

    assert b'"ui":false' in client.get("/")[1]
    assert json.loads(client.get("/_reload-hash")[1])["reloadHash"] is None


def test_behind_a_proxy_every_address_has_its_prefix(library: Library) -> None:
    """A proxy that takes the prefix off gets pages that put it on."""
    client = Client(library, prefix="/user/me/proxy/8050/")
    answer = client.http.get("/?token=secret")
    assert answer.headers["Location"] == "/user/me/proxy/8050/"
    # The cookie's path is the prefix, which this client does not see.
    name, value = answer.headers["Set-Cookie"].split(";")[0].split("=", 1)
    assert "Path=/user/me/proxy/8050/" in answer.headers["Set-Cookie"]
    client.http.set_cookie(name, value, path="/")
    page = client.http.get("/").get_data(as_text=True)

    addresses = [part.split('"')[0] for part in page.split('src="')[1:]]
    assert addresses
    assert all(a.startswith("/user/me/proxy/8050/") for a in addresses)
    assert 'data-base="/user/me/proxy/8050/"' in page


@pytest.mark.parametrize(
    "body",
    [
        *("null", "[]", "{}", "[" * 100_000, "{", "", '"x"', "1e999"),
        *('{"output": []}', '{"output": {}, "inputs": 1}', '{"output": "no.such"}'),
        '{"output": "..a.b...", "outputs": 3, "inputs": [[[]]], "state": {}}',
    ],
)
def test_what_no_page_asks_is_refused(
    admitted: Client, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line, and without a word on the terminal: it is nobody's fault of ours."""
    asked = {"content_type": "application/json", "data": body}
    with admitted.http.post("/_dash-update-component", **asked) as answer:
        assert answer.status_code == 400
        assert len(answer.data) < 500
        assert b"Traceback" not in answer.data
    assert not caplog.records


def test_a_file_that_dash_does_not_have_is_refused(admitted: Client) -> None:
    """Nor is one outside its folders."""
    for path in ("/_dash-component-suites/dash/no.js", "/_dash-component-suites/x/y"):
        assert admitted.get(path)[0] in (400, 404)


def test_a_fault_of_ours_is_written_down(
    admitted: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With its traceback, and without one in the answer."""

    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(api, "meta_of", fails)
    status, content = admitted.get("/api/meta?run=before")

    assert (status, content) == (500, b"500: this is a fault of ours.")
    assert "ZeroDivisionError: ours" in caplog.text
