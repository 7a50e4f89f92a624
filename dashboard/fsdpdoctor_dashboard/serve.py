"""Serve runs to a browser: on this host, behind a token, with waitress."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import waitress

from fsdpdoctor.errors import UsageError
from fsdpdoctor.network import Link
from fsdpdoctor.open_paths import DEFAULT, ReadOptions, open_paths
from fsdpdoctor_dashboard.app import Serving, make_app
from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.server.presence import Presence
from fsdpdoctor_dashboard.server.security import new_token

CONNECTIONS = 1024
"""At once. Each browser keeps six open; beyond the limit the next would hang."""

THREADS = 8
"""Of the server: six are what a browser opens at once, and tiles come between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the dashboard is to be found."""

    host: str
    port: int
    token: str
    prefix: str

    @property
    def url(self) -> str:
        """For this host's browser."""
        return f"http://{self.host}:{self.port}{self.prefix}?token={self.token}"

    @property
    def tunnel(self) -> str:
        """The command that brings it to another machine."""
        name = socket.gethostname()
        return f"ssh -C -N -L {self.port}:{self.host}:{self.port} {name}"


def serve(
    paths: Sequence[Path],
    *,
    announce: Callable[[Address], None],
    how: ReadOptions = DEFAULT,
    port: int = 0,
    host: str = "127.0.0.1",
    prefix: str = "/",
    hosts: tuple[str, ...] = (),
    network: Link | None = None,
    presence: Presence | None = None,
) -> None:
    """Serve until interrupted. Port 0 takes a free one.

    Raises InputError where there is no run, UsageError where the port is taken.
    """
    library = Library(paths, lambda path: open_paths([path], how))
    library.get(library.entries[0].id)  # read it while the browser starts
    if not prefix.startswith("/") or not prefix.endswith("/"):
        raise UsageError(f"the prefix is {prefix!r}; expected one like /user/me/proxy/")
    serving = Serving(
        token=new_token(),
        prefix=prefix,
        hosts=(host, *hosts),
        network=network,
        presence=presence or Presence(),
    )
    app = make_app(library, serving)
    listener = _listen(host, port)
    server = waitress.create_server(
        app.server,
        sockets=[listener],
        threads=THREADS,
        ident=None,
        connection_limit=CONNECTIONS,
        # Sent by the thread that made it. What waits for its main loop, that loop
        # polls for without a pause, and takes the lock from all who make answers.
        send_bytes=1,
        asyncore_use_poll=True,  # select() knows no file above number 1,024
    )
    # That a request waits a moment for a thread is no news on somebody's terminal.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    announce(
        Address(
            host=host,
            port=int(listener.getsockname()[1]),
            token=serving.token,
            prefix=prefix,
        )
    )
    try:
        server.run()
    finally:
        library.close()
        app.summaries.close()
        server.close()


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} is taken; --port 0 takes a free one"
            ) from None
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listener.listen(CONNECTIONS)
    return listener
