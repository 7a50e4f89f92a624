"""The routes that the timeline asks: JSON and binary tiles, read-only, by run id."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from flask import Blueprint, Response, request

from fsdpdoctor.intervals import Int64s
from fsdpdoctor_dashboard.data import queries
from fsdpdoctor_dashboard.data.finding_marks import finding_marks
from fsdpdoctor_dashboard.data.rank_tracks import Stretch
from fsdpdoctor_dashboard.data.run_registry import (
    Library,
    Loading,
    OpenRun,
    Picture,
    UnknownRunError,
    meta_of,
)
from fsdpdoctor_dashboard.data.series import SERIES, Row
from fsdpdoctor_dashboard.server.event_answers import EventAnswers
from fsdpdoctor_dashboard.server.query_params import Args, BadQueryError, whole, wholes
from fsdpdoctor_dashboard.server.responses import (
    packed_answer,
    ranks_asked,
    tag_of,
    tile_answer,
    tiles_asked,
)

Answerer = Callable[[Picture, Args], Any]


def api_routes(library: Library) -> Blueprint:
    """All routes below `api/`."""
    api = Blueprint("api", __name__, url_prefix="/api")

    def route(name: str, answer: Answerer) -> None:
        def view() -> Response:
            return _answered(library, answer)

        view.__name__ = name
        api.add_url_rule(f"/{name}", view_func=view)

    route("meta", lambda run, _: meta_of(run))
    route("tile", _tile)
    route("area", _area)
    route("under", _under)
    route("neighbour", _neighbour)
    route("exposed", _exposed)
    route("find", _find)
    route("span", _span)
    route("memory", _memory)
    route("live", _live)
    route("lit", _lit)
    route("revision", _revision)
    for name, answer in EventAnswers().by_name.items():
        route(name, answer)
    return api


def _answered(library: Library, answer: Answerer) -> Response:
    try:
        found = library.picture(request.args.get("run", ""))
        if isinstance(found, Loading):
            if found.error is not None:
                return _json({"error": found.error}, 409)
            return _json({"loading": found.words}, 202)
        content = answer(found, request.args)
    except UnknownRunError as error:
        return _json({"error": str(error)}, 404)
    except BadQueryError as error:
        return _json({"error": str(error)}, 400)
    return content if isinstance(content, Response) else _json(content)


def _json(content: Any, status: int = 200) -> Response:
    # Names may hold anything: ASCII JSON survives every charset, and is no HTML.
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    body, headers = packed_answer(text.encode(), _encodings())
    headers |= {"Content-Type": "application/json", "Cache-Control": "no-store"}
    return Response(body, status=status, headers=headers)


def _encodings() -> str:
    return request.headers.get("Accept-Encoding", "")


def _rank(run: Picture, args: Args) -> int:
    rank = whole(args, "rank")
    if rank not in run.store.spans:
        raise BadQueryError("the run has no such rank")
    return rank


def _tile(run: Picture, args: Args) -> Response:
    if request.if_none_match.contains(tag_of(run)):
        return Response(status=304)
    body, headers = tile_answer(run, args, _encodings())
    return Response(body, headers=headers)


def _area(run: Picture, args: Args) -> dict[str, Any]:
    t0, t1, ranks = whole(args, "t0"), whole(args, "t1"), ranks_asked(run, args)
    return {
        "series": run.store.area(t0, t1, ranks),
        "largest": queries.largest_exposed(run.store, ranks, t0, t1, len(run.units)),
    }


def _under(run: Picture, args: Args) -> dict[str, Any]:
    rank, row = _rank(run, args), whole(args, "row")
    return queries.under(run.store, rank, row, whole(args, "t0"), whole(args, "t1"))


def _forward(args: Args) -> bool:
    return whole(args, "forward", 1) != 0


def _neighbour(run: Picture, args: Args) -> dict[str, Any]:
    rank, row, time = _rank(run, args), whole(args, "row"), whole(args, "time")
    return queries.neighbour(run.store, rank, row, time, _forward(args))


def _exposed(run: Picture, args: Args) -> dict[str, Any]:
    ranks, time, forward = ranks_asked(run, args), whole(args, "time"), _forward(args)
    least = whole(args, "least", 0)
    return queries.next_exposed(run.store, ranks, time, forward, least)


def _find(run: Picture, args: Args) -> dict[str, Any]:
    units: Int64s = np.array(wholes(args, "units"), dtype=np.int64)
    ranks, time = ranks_asked(run, args), whole(args, "time")
    return queries.find(run.store, ranks, units, time, _forward(args))


def _span(run: Picture, args: Args) -> dict[str, Any]:
    rank, series, span = _rank(run, args), whole(args, "series"), whole(args, "span")
    if not 0 <= series < len(SERIES):
        raise BadQueryError("there is no such series")
    row = SERIES[series].row
    table = run.store.exposed[rank] if row == Row.EXPOSED else run.store.spans[rank]
    if row != Row.STEP and not 0 <= span < len(table):
        raise BadQueryError("the rank has no such span")
    return run.details.of(rank, series, span)


def _memory(run: Picture, args: Args) -> dict[str, Any]:
    level, indices = tiles_asked(args)
    return queries.memory_curve(run.store, _rank(run, args), level, indices)


def _live(run: Picture, args: Args) -> list[dict[str, Any]]:
    return run.details.live(_rank(run, args), whole(args, "time"))


def _lit(run: Picture, args: Args) -> list[Stretch]:
    """All that one of the report's findings is about."""
    at = whole(args, "finding")
    if not isinstance(run, OpenRun) or not 0 <= at < len(run.report.findings):
        raise BadQueryError("the run has no such finding")
    return finding_marks(run.measures, run.store, run.report.findings[at])


def _revision(run: Picture, _: Args) -> dict[str, Any]:
    return {"revision": run.revision, "live": run.live}
