"""Who is answered by which thread, and what may wait for whom."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("cheroot", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor_dashboard.server.http_server import THREADS, HttpServer

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


@contextmanager
def serving(app: WSGIApplication) -> Iterator[str]:
    """A server of an application, on a port of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(listener, app)
        server.prepare()
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.stop()
            thread.join()


class Crowd:
    """An application that sees whether two ask at once."""

    def __init__(self, wait_s: float) -> None:
        self.together = threading.Barrier(2)
        self.wait_s = wait_s

    def __call__(
        self, environ: WSGIEnvironment, start: StartResponse
    ) -> Iterable[bytes]:
        """Wait a moment for somebody else to ask."""
        try:
            self.together.wait(timeout=self.wait_s)
            met = b"met"
        except threading.BrokenBarrierError:
            met = b"alone"
        start("200 OK", [("Content-Length", str(len(met)))])
        return [met]


def asked(base: str, path: str) -> bytes:
    """What two who ask at once are answered."""
    with ThreadPoolExecutor(2) as pool:
        return b" ".join(
            pool.map(
                lambda _: urllib.request.urlopen(base + path, timeout=30).read(),
                range(2),
            )
        )


def test_tiles_are_made_one_after_the_other() -> None:
    """Two that are asked for at once never meet; two of anything else do."""
    with serving(Crowd(wait_s=0.5)) as base:
        assert asked(base, "/api/tile?run=a") == b"alone alone"
    with serving(Crowd(wait_s=30)) as base:
        assert asked(base, "/api/area?run=a") == b"met met"


def test_tiles_do_not_wait_for_pages() -> None:
    """While every other thread has a request that takes long, a tile is answered."""
    done = threading.Event()

    def slow(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/api/tile":
            done.wait(timeout=30)
        start("200 OK", [("Content-Length", "4")])
        return [b"made"]

    with serving(slow) as base, ThreadPoolExecutor(THREADS) as pool:
        pages = [
            pool.submit(urllib.request.urlopen, f"{base}/", timeout=60)
            for _ in range(THREADS)
        ]
        with urllib.request.urlopen(f"{base}/api/tile?run=a", timeout=20) as answer:
            tile = answer.read()
        waited = not any(page.done() for page in pages)
        done.set()
        for page in pages:
            page.result().close()

    assert tile == b"made"
    assert waited


def test_silent_connections_take_no_thread() -> None:
    """Browsers open some that they never use: what is asked is answered meanwhile."""

    def quick(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        start("200 OK", [("Content-Length", "4")])
        return [b"here"]

    with serving(quick) as base:
        place = ("127.0.0.1", int(base.rpartition(":")[2]))
        silent = [socket.create_connection(place) for _ in range(3 * THREADS)]
        with urllib.request.urlopen(base, timeout=5) as answer:
            body = answer.read()
        for connection in silent:
            connection.close()

    assert body == b"here"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is given to the kernel from now on, call by call."""
    calls: list[bytes] = []
    write = socket.SocketIO.write

    def noted(wire: socket.SocketIO, content: bytes) -> int | None:
        calls.append(bytes(content))
        return write(wire, content)

    monkeypatch.setattr(socket.SocketIO, "write", noted)
    return calls


def test_an_answer_is_one_call_of_the_kernel(sent: list[bytes]) -> None:
    """Its head and the beginning of its body go together; the rest goes as it comes."""

    def made(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        start("200 OK", [("Content-Length", "9")])
        return [b"first", b"rest"]

    with serving(made) as base, urllib.request.urlopen(base, timeout=20) as answer:
        body = answer.read()

    assert body == b"firstrest"
    assert len(sent) == 2
    assert sent[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert sent[0].endswith(b"\r\n\r\nfirst")


def test_answers_without_a_body_or_its_length_arrive() -> None:
    """What has no body is its head; what names no length comes in pieces."""

    def bare(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/none":
            start("204 No Content", [])
            return []
        start("200 OK", [])
        return [] if environ["PATH_INFO"] == "/empty" else [b"in ", b"pieces"]

    with serving(bare) as base:
        found = {}
        for path in ("/none", "/empty", "/pieces"):
            with urllib.request.urlopen(base + path, timeout=20) as answer:
                found[path] = answer.status, answer.read()

    assert found == {
        "/none": (204, b""),
        "/empty": (200, b""),
        "/pieces": (200, b"in pieces"),
    }
