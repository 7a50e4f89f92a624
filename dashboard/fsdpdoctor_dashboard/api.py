"""The routes that the timeline asks: JSON and binary tiles, read-only, by run id."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from flask import Blueprint, Response, request
from isal import igzip

from fsdpdoctor.intervals import Int64s
from fsdpdoctor_dashboard import queries, tiles
from fsdpdoctor_dashboard.library import (
    Library,
    Loading,
    Picture,
    UnknownRunError,
    meta_of,
)
from fsdpdoctor_dashboard.marks import SERIES, Row

WORTH_PACKING = 2_000
"""Bytes from which an answer is compressed: a tunnel is slower than a millisecond."""
TILE_SECONDS = 3600
MOST_TILES = 4
"""In one answer; a view needs three. loader.js has the same number."""

View = Callable[[], Response]


class BadQueryError(ValueError):
    """A query that this page's own script would not have sent."""


def api_routes(library: Library) -> Blueprint:
    """All routes below `api/`."""
    api = Blueprint("api", __name__, url_prefix="/api")

    def route(name: str, answer: Callable[[Picture], Any]) -> None:
        def view() -> Response:
            return _answered(library, answer)

        view.__name__ = name
        api.add_url_rule(f"/{name}", view_func=view)

    route("meta", meta_of)
    route("tile", _tile)
    route("area", _area)
    route("under", _under)
    route("neighbour", _neighbour)
    route("exposed", _exposed)
    route("find", _find)
    route("span", _span)
    route("memory", _memory)
    route("live", _live)
    route("revision", _revision)
    return api


def _answered(library: Library, answer: Callable[[Picture], Any]) -> Response:
    try:
        found = library.picture(request.args.get("run", ""))
        if isinstance(found, Loading):
            if found.error is not None:
                return _json({"error": found.error}, 409)
            return _json({"loading": found.words}, 202)
        content = answer(found)
    except UnknownRunError as error:
        return _json({"error": str(error)}, 404)
    except BadQueryError as error:
        return _json({"error": str(error)}, 400)
    return content if isinstance(content, Response) else _json(content)


def _json(content: Any, status: int = 200) -> Response:
    # Names may hold anything: ASCII JSON survives every charset, and is no HTML.
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    answer = Response(status=status, mimetype="application/json")
    _fill(answer, text.encode())
    answer.headers["Cache-Control"] = "no-store"
    return answer


def _fill(answer: Response, body: bytes) -> None:
    if len(body) > WORTH_PACKING and "gzip" in request.headers.get(
        "Accept-Encoding", ""
    ):
        body = igzip.compress(body, compresslevel=1)
        answer.headers["Content-Encoding"] = "gzip"
    answer.data = body
    answer.headers["Vary"] = "Accept-Encoding, Cookie"


def _whole(name: str, default: int | None = None) -> int:
    given = request.args.get(name)
    if given is None and default is not None:
        return default
    try:
        number = int(given or "")
    except ValueError:
        raise BadQueryError(f"{name} must be a whole number") from None
    if not -(1 << 62) <= number < 1 << 62:
        raise BadQueryError(f"{name} is out of range")
    return number


def _wholes(name: str) -> list[int]:
    try:
        return [int(part) for part in request.args.get(name, "").split(",") if part]
    except ValueError:
        raise BadQueryError(f"{name} must be whole numbers with commas") from None


def _ranks(run: Picture) -> list[int]:
    return [rank for rank in _wholes("ranks") if rank in run.store.spans]


def _rank(run: Picture) -> int:
    rank = _whole("rank")
    if rank not in run.store.spans:
        raise BadQueryError("the run has no such rank")
    return rank


def _tiles() -> tuple[int, range]:
    """Level and tiles that are asked for."""
    level, index, count = _whole("level"), _whole("index"), _whole("count", 1)
    if not tiles.MIN_LEVEL <= level <= 62 or not 0 <= index < 1 << (62 - level):
        raise BadQueryError("there is no such tile")
    if not 1 <= count <= MOST_TILES:
        raise BadQueryError(f"count must be from 1 to {MOST_TILES}")
    return level, range(index, index + count)


def _tile(run: Picture) -> Response:
    tag = f"{run.store.fingerprint}-{run.revision}"
    if request.if_none_match.contains(tag):
        return Response(status=304)
    level, indices = _tiles()
    condensed, ranks = request.args.get("rows") == "condensed", _ranks(run)
    body = b"".join(
        run.tiles.tile(level, index, ranks, condensed=condensed) for index in indices
    )
    answer = Response(mimetype="application/octet-stream")
    _fill(answer, body)
    answer.set_etag(tag)
    # The address holds the run's fingerprint: what it names never changes.
    answer.headers["Cache-Control"] = f"private, max-age={TILE_SECONDS}"
    return answer


def _area(run: Picture) -> dict[str, Any]:
    t0, t1, ranks = _whole("t0"), _whole("t1"), _ranks(run)
    return {
        "series": run.store.area(t0, t1, ranks),
        "largest": queries.largest_exposed(run.store, ranks, t0, t1, len(run.units)),
    }


def _under(run: Picture) -> dict[str, Any]:
    return queries.under(
        run.store, _rank(run), _whole("row"), _whole("t0"), _whole("t1")
    )


def _forward() -> bool:
    return _whole("forward", 1) != 0


def _neighbour(run: Picture) -> dict[str, Any]:
    return queries.neighbour(
        run.store, _rank(run), _whole("row"), _whole("time"), _forward()
    )


def _exposed(run: Picture) -> dict[str, Any]:
    return queries.next_exposed(
        run.store, _ranks(run), _whole("time"), _forward(), _whole("least", 0)
    )


def _find(run: Picture) -> dict[str, Any]:
    units: Int64s = np.array(_wholes("units"), dtype=np.int64)
    return queries.find(run.store, _ranks(run), units, _whole("time"), _forward())


def _span(run: Picture) -> dict[str, Any]:
    rank, series, span = _rank(run), _whole("series"), _whole("span")
    if not 0 <= series < len(SERIES):
        raise BadQueryError("there is no such series")
    row = SERIES[series].row
    table = run.store.exposed[rank] if row == Row.EXPOSED else run.store.spans[rank]
    if row != Row.STEP and not 0 <= span < len(table):
        raise BadQueryError("the rank has no such span")
    return run.details.of(rank, series, span)


def _memory(run: Picture) -> dict[str, Any]:
    level, indices = _tiles()
    return queries.memory_curve(run.store, _rank(run), level, indices)


def _live(run: Picture) -> list[dict[str, Any]]:
    return run.details.live(_rank(run), _whole("time"))


def _revision(run: Picture) -> dict[str, Any]:
    return {"revision": run.revision, "live": run.live}
