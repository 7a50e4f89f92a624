"""Files that the app hands out: a run for Perfetto, one rank as torch.profiler's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from flask import Blueprint, Response, request, send_file

from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from fsdpdoctor.exporters.perfetto_run import write_run
from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun, UnknownRunError


class UnknownRankError(ValueError):
    """A rank that the run has not."""


def export_routes(library: Library) -> Blueprint:
    """All routes below `export/`."""
    export = Blueprint("export", __name__, url_prefix="/export")

    @export.get("/perfetto")
    def perfetto() -> Response:
        return _sent(library, _perfetto)

    @export.get("/kineto")
    def kineto() -> Response:
        return _sent(library, _kineto)

    return export


def _sent(library: Library, write: Callable[[OpenRun, Path], str]) -> Response:
    """A file that `write` fills, under the name that it gives."""
    try:
        run = library.get(request.args.get("run", ""))
    except UnknownRunError as error:
        return Response(str(error), 404, mimetype="text/plain")
    if not isinstance(run, OpenRun):
        return Response("the run is being read: try again", 503)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        try:
            name = write(run, path)
        except UnknownRankError as error:
            return Response(str(error), 404, mimetype="text/plain")
        # Held open: its name may go before it is sent.
        return send_file(
            path.open("rb"),
            mimetype="application/gzip",
            as_attachment=True,
            download_name=name,
        )


def _ranks(run: OpenRun) -> list[int]:
    """The ranks that are asked for, all where none are named."""
    known = {str(source.rank): source.rank for source in run.run.sources}
    named = request.args.get("ranks", "")
    if not named:
        return list(known.values())
    asked = dict.fromkeys(named.split(","))  # each once, however often it is named
    if missing := [name for name in asked if name not in known]:
        raise UnknownRankError(f"the run has no rank {missing[0][:20]}")
    return [known[name] for name in asked]


def _perfetto(run: OpenRun, path: Path) -> str:
    """Our lanes, exposed stretches with their causes, and arrows: all in one file."""
    write_run(run.run, run.measures, path, ranks=_ranks(run))
    return f"{run.id}.perfetto.json.gz"


def _kineto(run: OpenRun, path: Path) -> str:
    """One rank in the form of torch.profiler's traces."""
    rank, *others = _ranks(run)
    if others:
        raise UnknownRankError("torch.profiler's form holds one rank: say which")
    source = next(s for s in run.run.sources if s.rank == rank)
    options = TraceOptions(made_from=f"a {run.run.header.source} run", flows=True)
    write_trace(source.load(), path, options)
    return f"{run.id}-rank{rank}.json.gz"
