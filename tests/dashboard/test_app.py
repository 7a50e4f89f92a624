"""The server: who is let in, what is answered, and to how many at once."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from flask import Flask
from werkzeug.test import create_environ, run_wsgi_app

from fsdpdoctor.analysis.timeline import timelines
from fsdpdoctor.errors import InputError
from fsdpdoctor.run import Run, open_run
from fsdpdoctor_dashboard.data import tiles
from fsdpdoctor_dashboard.data.run_registry import (
    Library,
    OpenRun,
)
from fsdpdoctor_dashboard.data.series import EXPOSED_SERIES, SERIES, Row
from fsdpdoctor_dashboard.pages.requests.page_request import PAGES, RUNS
from fsdpdoctor_dashboard.server.security import Guard
from fsdpdoctor_dashboard.server.tile_middleware import with_quick_tiles
from tests.dashboard.conftest import Served, serve_runs
from tests.dashboard.synthetic import Shape, write_run

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse
from tests.dashboard.client import Client


def test_tiles_are_cached_by_what_they_show(admitted: Client) -> None:
    """A tile has the run's tag, is compressed, and is not sent twice."""
    meta = json.loads(admitted.get("/api/meta?run=before")[1])
    path = f"/api/tile?run=before&level={meta['level']}&index=0&ranks=0,1,2,3"
    answer = admitted.http.get(path)
    packed = admitted.http.get(path, headers={"Accept-Encoding": "gzip"})
    again = admitted.http.get(path, headers={"If-None-Match": answer.headers["ETag"]})

    assert answer.data[:4] == tiles.MAGIC.to_bytes(4, "little")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert len(packed.data) < len(answer.data)
    assert "private" in answer.headers["Cache-Control"]
    assert again.status_code == 304
    assert again.data == b""


PLAIN = {"Host": "localhost:80"}
"""As a browser sends it where the server is not on port 80: then the way is short."""


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_the_short_way_to_a_tile_gives_flasks_answer(
    admitted: Client, encoding: str
) -> None:
    """Status, headers and bytes are those of the route that it goes around."""
    meta = json.loads(admitted.get("/api/meta?run=before")[1])
    path = f"/api/tile?run=before&level={meta['level']}&index=0&ranks=0,1&count=2"
    asked = {"Accept-Encoding": encoding}
    long = admitted.http.get(path, headers=asked)
    short = admitted.http.get(path, headers=asked | PLAIN)

    assert short.status_code == long.status_code == 200
    assert dict(short.headers) == dict(long.headers)
    assert short.data == long.data


def plain_request(query: str) -> tuple[Guard, dict[str, Any]]:
    """A request for tiles with nothing unusual, and the guard that admits it."""
    guard = Guard(token="secret", hosts=(), prefix="/", script_hashes=())
    server = Flask("behind")
    server.add_url_rule("/", view_func=lambda: "")
    guard.protect(server)
    given = server.test_client().get("/?token=secret").headers["Set-Cookie"]
    return guard, create_environ(method="GET", path="/api/tile") | {
        "HTTP_HOST": "localhost:80",
        "HTTP_COOKIE": given.partition(";")[0],
        "QUERY_STRING": query,
    }


def refused(_: object, start: StartResponse) -> list[bytes]:
    """The application behind the tiles, which has none."""
    start("404 Not Found", [])
    return []


@pytest.mark.parametrize(
    ("quick", "change"),
    [
        (True, {}),
        (True, {"HTTP_COOKIE": "other=1; {cookie}; more=2"}),
        (False, {"HTTP_COOKIE": ""}),
        (False, {"HTTP_COOKIE": "x{cookie}"}),
        (False, {"HTTP_COOKIE": "{cookie}x"}),
        (False, {"HTTP_COOKIE": "other={cookie}"}),
        (False, {"HTTP_HOST": "evil.example:80"}),
        (False, {"HTTP_HOST": "localhost.evil.example:80"}),
        (False, {"HTTP_HOST": "localhost"}),
        (False, {"REQUEST_METHOD": "POST"}),
        (False, {"PATH_INFO": "/api/tile/"}),
        (False, {"HTTP_IF_NONE_MATCH": '"x"'}),
        (False, {"QUERY_STRING": "{query}&token=wrong"}),
        (False, {"QUERY_STRING": "{query}&count="}),
        (False, {"QUERY_STRING": "run=../before"}),
        (False, {"QUERY_STRING": ""}),
    ],
)
def test_only_what_is_plainly_right_takes_the_short_way(
    library: Library, quick: bool, change: dict[str, str]
) -> None:
    """All else is the application's to answer or to refuse."""
    level = tiles.whole_level(library.wait("before").store)
    query = f"run=before&level={level}&index=0&ranks=0"
    guard, environ = plain_request(query)
    named = {"cookie": environ["HTTP_COOKIE"], "query": query}
    passed_on = []

    def behind(_: object, start: StartResponse) -> list[bytes]:
        passed_on.append(True)
        start("200 OK", [])
        return []

    app = with_quick_tiles(behind, library, guard)
    run_wsgi_app(app, environ | {k: v.format(**named) for k, v in change.items()})

    assert not passed_on if quick else passed_on


def test_neighbouring_tiles_come_together(admitted: Client, library: Library) -> None:
    """`count` tiles are the same bytes, one after the other; too many are refused."""
    level = tiles.whole_level(library.wait("before").store) - 2
    ask = f"/api/tile?run=before&level={level}&ranks=0,2&rows=all"
    each = [admitted.get(f"{ask}&index={index}")[1] for index in (1, 2)]

    assert admitted.get(f"{ask}&index=1&count=2") == (200, b"".join(each))
    assert admitted.get(f"{ask}&index=1&count=0")[0] == 400
    assert admitted.get(f"{ask}&index=1&count=5")[0] == 400


def test_the_area_shows_the_analysis_own_stalls(
    library: Library, admitted: Client
) -> None:
    """Exposed time of each step and kind is that of the step's Timeline, to the ns."""
    run = library.wait("before")
    origin = run.store.origin_ns
    for source in run.run.sources:
        for line in timelines(source.load()):
            query = f"t0={line.start_ns - origin}&t1={line.end_ns - origin}"
            _, body = admitted.get(f"/api/area?run=before&ranks={source.rank}&{query}")
            shown = {row[1]: row[2] for row in json.loads(body)["series"]}
            for kind, series in EXPOSED_SERIES.items():
                stalls = line.stalls.rows(line.stalls.kind == kind)
                assert shown.get(series, 0) == int(stalls.duration_ns.sum())
            compute = [
                row[2]
                for row in json.loads(body)["series"]
                if SERIES[row[1]].row == Row.COMPUTE
            ]
            busy = int((line.compute[:, 1] - line.compute[:, 0]).sum())
            assert sum(compute) == busy


def test_a_span_says_what_its_record_says(admitted: Client, library: Library) -> None:
    """Details carry the causes, the flow on the rank and the peers on the others."""
    run = library.wait("before")
    series = EXPOSED_SERIES[next(iter(EXPOSED_SERIES))]
    status, body = admitted.get(f"/api/span?run=before&rank=1&series={series}&span=0")
    found = json.loads(body)
    stalls = run.measures.ranks[1].stalls

    assert status == 200
    assert sum(ns for _, ns in found["causes"]) == found["end"] - found["start"]
    assert found["end"] - found["start"] == int(stalls.duration_ns[0])
    assert [place["kind"] for place in found["flow"]] == [
        "unshard",
        "all_gather_wait",
        "copy_in",
        "all_gather",
        "copy_out",
        "unsharded",
    ]
    assert [place["rank"] for place in found["peers"]] == [0, 2, 3]


def test_exports_have_the_ranks_that_are_asked_for(admitted: Client) -> None:
    """For Perfetto all ranks or some, for torch.profiler's readers one."""

    def events(path: str) -> list[dict[str, object]]:
        status, body = admitted.get(f"/export/{path}")
        assert status == 200
        found: list[dict[str, object]] = json.loads(gzip.decompress(body))[
            "traceEvents"
        ]
        return found

    whole = events("perfetto?run=before")
    assert {event["pid"] for event in whole} == {0, 1, 2, 3}
    some = events("perfetto?run=before&ranks=1,3")
    assert {event["pid"] for event in some} == {1, 3}
    labels = {str(event["name"]) for event in events("kineto?run=before&ranks=2")}
    assert "FSDP::all_gather (model.layers.0)" in labels
    assert admitted.get("/export/perfetto?run=before&ranks=9")[0] == 404
    assert admitted.get("/export/kineto?run=before")[0] == 404
    assert admitted.get("/export/perfetto?run=../before")[0] == 404


def test_every_page_is_made_without_a_server_error(library: Library) -> None:
    """Each page of one run and of two side by side lays out."""
    import importlib

    from fsdpdoctor_dashboard.pages.components import Context

    both = tuple(library.wait(name) for name in ("before", "after"))
    of_a_run = [module for name, (_, module) in PAGES.items() if name != RUNS]
    for module in of_a_run:
        page = importlib.import_module(f"fsdpdoctor_dashboard.pages.{module}").page
        for shown in (both[:1], both):
            for theme in ("light", "dark"):
                made = page(Context(base="/", theme=theme, runs=shown))
                assert "model.layers.3" in str(made) or module not in ("units",)


def test_parallel_tiles_while_a_run_is_read(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    """200 tiles, 20 at once, while another run loads: every one is answered."""
    large = write_run(tmp_path / "large", Shape(ranks=4, layers=16, steps=20))
    with serve_runs(runs["before"], large) as served:
        cookie = _cookie(served)
        _fetch(served, cookie, "api/meta?run=before", wait=True)
        statuses: list[int] = []

        def ask(index: int) -> None:
            path = f"api/tile?run=before&level=24&index={index % 30}&ranks=0,1,2,3"
            statuses.append(_fetch(served, cookie, path))

        _fetch(served, cookie, "api/meta?run=large")  # starts reading it
        for batch in range(0, 200, 20):
            threads = [
                threading.Thread(target=ask, args=(batch + i,)) for i in range(20)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        assert statuses == [200] * 200


def _cookie(served: Served) -> str:
    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *args: object, **more: object) -> None:
            return None

    try:
        urllib.request.build_opener(Stay).open(served.url, timeout=30)
    except urllib.error.HTTPError as answer:
        cookie: str = answer.headers["Set-Cookie"].split(";")[0]
        answer.close()
        return cookie
    raise AssertionError("the token was not taken")


def _fetch(served: Served, cookie: str, path: str, *, wait: bool = False) -> int:
    request = urllib.request.Request(served.base + path, headers={"Cookie": cookie})
    for _ in range(600):
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            if answer.status != 202 or not wait:
                return int(answer.status)
        time.sleep(0.1)
    raise AssertionError("the run was not read within a minute")


def test_what_is_no_run_is_said_at_once(tmp_path: Path) -> None:
    """Missing folders are one clear sentence before any server starts."""
    with pytest.raises(InputError, match="does not exist"):
        Library([tmp_path / "none"], open_run)


def test_a_damaged_run_says_so_in_the_page(tmp_path: Path) -> None:
    """Opening fails with the analysis's own sentence, and may be tried again."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    library = Library([tmp_path / "broken"], open_run)
    client = Client(library)
    client.get("/?token=secret")
    for _ in range(100):
        status, body = client.get("/api/meta?run=broken")
        if status != 202:
            break
        time.sleep(0.05)

    assert status == 409
    assert "damaged" in json.loads(body)["error"]


def test_a_damaged_run_is_read_once_until_it_changes(tmp_path: Path) -> None:
    """Every page asks, and only new files are a reason to read them again."""
    (tmp_path / "run").mkdir()
    header = tmp_path / "run" / "run.json"
    header.write_text("{")
    read: list[Path] = []

    def opener(path: Path) -> Run:
        read.append(path)
        return open_run(path)

    library = Library([tmp_path / "run"], opener)
    for _ in range(3):
        with pytest.raises(InputError, match="damaged"):
            library.wait("run")
    assert len(read) == 1
    header.write_text("{ ")
    with pytest.raises(InputError, match="damaged"):
        library.wait("run")
    assert len(read) == 2


def test_a_growing_run_is_followed(tmp_path: Path) -> None:
    """What is written while it is shown is read, under a higher revision."""
    whole = write_run(tmp_path / "whole", Shape(ranks=1, layers=2, steps=6))
    stream = (whole / "rank00000.arrows").read_bytes()
    header = (whole / "rank00000.json").read_text()
    (whole / "rank00000.json").write_text(header.replace('"done"', '"running"'))
    (whole / "rank00000.arrows").write_bytes(stream[: len(stream) // 2])
    library = Library([whole], open_run)
    first = library.wait("whole")
    assert first.live

    (whole / "rank00000.arrows").write_bytes(stream)
    (whole / "rank00000.json").write_text(header)
    for _ in range(300):
        found = library.get("whole")
        if isinstance(found, OpenRun) and found.revision > 1:
            break
        time.sleep(0.05)

    assert isinstance(found, OpenRun)
    assert found.revision == 2
    assert not found.live
    assert len(found.measures.ranks[0].steps) == 6
    assert found.store.end > first.store.end


def test_many_connections_are_held_at_once(served: Served) -> None:
    """Idle ones take nobody's place: browsers keep several open each."""
    place = urllib.parse.urlsplit(served.base)
    with ExitStack() as held:
        for _ in range(150):
            address = (place.hostname, place.port)
            held.enter_context(socket.create_connection(address, timeout=30))
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(served.base, timeout=30)

    assert refused.value.code == 403
    refused.value.close()
