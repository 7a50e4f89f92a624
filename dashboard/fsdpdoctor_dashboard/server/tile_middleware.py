"""Tiles without a web framework: what asks plainly for them is answered right here.

A zoom asks for tiles and for nothing else, many times a second. Flask, which finds
routes, parses cookies and builds header tables, takes as long for one as making it
does. So a request for tiles that is plainly admitted and plainly right never gets
there. Whatever is in the least unusual does, and gets its answer or refusal there: here
nothing is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from fsdpdoctor_dashboard.data.run_registry import Library, Loading, UnknownRunError
from fsdpdoctor_dashboard.server.query_params import BadQueryError
from fsdpdoctor_dashboard.server.responses import TILES, Answer, tile_answer
from fsdpdoctor_dashboard.server.security import Guard

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def with_quick_tiles(
    app: WSGIApplication, library: Library, guard: Guard
) -> WSGIApplication:
    """The application, with a short way to its tiles."""
    hardening = list(guard.headers.items())

    def serve(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != TILES:
            return app(environ, start)
        found = _answer(environ, library, guard)
        if found is None:
            return app(environ, start)
        length = ("Content-Length", str(len(found.body)))
        start("200 OK", [*found.headers.items(), length, *hardening])
        return [found.body]

    return serve


def _answer(environ: WSGIEnvironment, library: Library, guard: Guard) -> Answer | None:
    if environ["REQUEST_METHOD"] != "GET":
        return None
    if "HTTP_IF_NONE_MATCH" in environ or not guard.plainly_admits(environ):
        return None
    # The first of a name counts, as in Flask.
    pairs = parse_qsl(environ["QUERY_STRING"], keep_blank_values=True)
    args = dict(reversed(pairs))
    if "token" in args:
        return None
    try:
        run = library.picture(args.get("run", ""))
        if isinstance(run, Loading):
            return None
        return tile_answer(run, args, environ.get("HTTP_ACCEPT_ENCODING", ""))
    except (UnknownRunError, BadQueryError):
        return None
