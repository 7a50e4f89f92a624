"""Serve runs to a browser: on this host, behind a token, with cheroot."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdpdoctor.errors import UsageError
from fsdpdoctor.network import Link
from fsdpdoctor.open_paths import DEFAULT, ReadOptions, open_paths
from fsdpdoctor_dashboard.app import Serving, make_app
from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.server.http_server import CONNECTIONS, HttpServer
from fsdpdoctor_dashboard.server.presence import Presence
from fsdpdoctor_dashboard.server.security import new_token

COLLECTED_AFTER = 10_000
"""Objects: some 500 requests, that leave 10 MB. Python's own 700 took a tenth of the
server's time while tiles were asked for."""


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
    os.environ.pop("LISTEN_PID", None)  # a service's own socket is none of ours
    server = HttpServer(listener, app.server)
    server.prepare()
    # What is imported stays: no collection need look at it again. What a request leaves
    # behind is the same few objects, which can wait for the next thousand's.
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)
    announce(
        Address(
            host=host,
            port=int(listener.getsockname()[1]),
            token=serving.token,
            prefix=prefix,
        )
    )
    try:
        with contextlib.suppress(KeyboardInterrupt):
            server.serve()
    finally:
        library.close()
        app.summaries.close()
        server.stop()


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
