"""The server of HTTP: cheroot, with a thread that answers for tiles alone."""

from __future__ import annotations

import contextlib
import io
import select
import socket
import weakref
from queue import SimpleQueue
from threading import Thread
from typing import Any

from cheroot import server, wsgi

from fsdpdoctor_dashboard.server.responses import TILES

CONNECTIONS = 1024
"""At once. Each browser keeps six open; beyond the limit the next would hang."""

THREADS = 8
"""Of the server: six are what a browser opens at once, and tiles come between."""

TILE_REQUEST = f"GET {TILES}?".encode()
"""How a request for tiles begins."""

HEADER_BYTES, BODY_BYTES = 1 << 16, 1 << 24
"""Of a request at most: a page's state goes back and forth in its body."""

LAST_ANSWER_S = 1
"""To an answer that is under way when the server ends."""


class _Request(server.HTTPRequest):
    """Its answer's head goes with the beginning of the body: one call of the kernel
    and one turn of the browser, where cheroot has two.
    """

    _head = b""

    def send_headers(self) -> None:
        """Keep the head for what follows; a body without a known length is sent by
        cheroot in pieces that have to stand for themselves.
        """
        wire, kept = self.conn.wfile, io.BytesIO()
        self.conn.wfile = kept
        try:
            super().send_headers()
        finally:
            self.conn.wfile = wire
        if self.chunked_write:
            wire.write(kept.getvalue())
        else:
            self._head = kept.getvalue()

    def write(self, chunk: bytes) -> None:
        """Send a piece of the body, the first one with the head."""
        head, self._head = self._head, b""
        super().write(head + chunk)

    def respond(self) -> None:
        """Answer; what has no body is sent as its head."""
        super().respond()
        if self._head:
            self.write(b"")


class _Connection(server.HTTPConnection):
    RequestHandlerClass = _Request


class HttpServer(wsgi.Server):
    """Cheroot on a socket that listens already, which says nothing on a terminal."""

    ConnectionClass = _Connection

    def __init__(self, listener: socket.socket, app: object) -> None:
        super().__init__(
            listener.getsockname(),
            app,
            numthreads=THREADS,
            server_name="fsdpdoctor",
            request_queue_size=CONNECTIONS,
            shutdown_timeout=LAST_ANSWER_S,
        )
        self._listener = listener
        self._tiles: SimpleQueue[Any] = SimpleQueue()
        Thread(target=self._answer_tiles, name="tiles", daemon=True).start()
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()
        self.keep_alive_conn_limit = CONNECTIONS
        self.max_request_header_size = HEADER_BYTES
        self.max_request_body_size = BODY_BYTES

    def bind(self, family: int, kind: int, proto: int = 0) -> socket.socket:
        """Take the socket that there is; an answer's end is sent without a wait for
        the browser's word that it has its beginning, which takes 40 ms.
        """
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = self._listener
        return self._listener

    def process_conn(self, conn: Any) -> None:
        """A new connection waits for its first bytes without a thread: browsers open
        some that they never use, and eight of those would hold everybody up.
        """
        first = _first_bytes(conn.socket)
        if first == TILE_REQUEST:
            self._tiles.put(conn)
        elif first or conn in self._opened:
            super().process_conn(conn)
        else:
            self._opened.add(conn)
            self.put_conn(conn)

    def _answer_tiles(self) -> None:
        """Each request after the other. A tile takes less than a millisecond of this
        interpreter: of 200 at once, eight threads that hand its lock to each other
        made each twice as dear.
        """
        while (conn := self._tiles.get()) is not None:
            stays = False
            # What else goes wrong, `communicate` answers with an error.
            with contextlib.suppress(OSError):
                stays = conn.communicate()
            with contextlib.suppress(OSError):
                if stays:
                    self.put_conn(conn)
                else:
                    conn.close()

    def stop(self) -> None:
        """End it; what is under way gets a moment."""
        super().stop()
        self._tiles.put(None)

    def error_log(self, msg: str = "", level: int = 0, traceback: bool = False) -> None:
        """A connection that broke off is no news on somebody's terminal."""


def _first_bytes(connection: socket.socket) -> bytes:
    """As many as tell a request for tiles, where they are there already."""
    asked = select.poll()
    asked.register(connection, select.POLLIN)
    if not asked.poll(0):
        return b""
    with contextlib.suppress(OSError):
        return connection.recv(len(TILE_REQUEST), socket.MSG_PEEK)
    return b""
