"""Files that the app hands out: one rank as a trace for Perfetto."""

from __future__ import annotations

import tempfile
from pathlib import Path

from flask import Blueprint, Response, request, send_file

from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from fsdpdoctor_dashboard.library import Library, OpenRun, UnknownRunError


def export_routes(library: Library) -> Blueprint:
    """All routes below `export/`."""
    export = Blueprint("export", __name__, url_prefix="/export")

    @export.get("/perfetto")
    def perfetto() -> Response:
        try:
            run = library.get(request.args.get("run", ""))
        except UnknownRunError as error:
            return Response(str(error), 404, mimetype="text/plain")
        if not isinstance(run, OpenRun):
            return Response("the run is being read: try again", 503)
        rank = request.args.get("rank", "")
        source = next((s for s in run.run.sources if str(s.rank) == rank), None)
        if source is None:
            return Response("the run has no such rank", 404, mimetype="text/plain")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json.gz"
            made_from = f"a {run.run.header.source} run"
            options = TraceOptions(made_from=made_from, flows=True)
            write_trace(source.load(), path, options)
            # Held open: its name may go before it is sent.
            return send_file(
                path.open("rb"),
                mimetype="application/gzip",
                as_attachment=True,
                download_name=f"{run.id}-rank{rank}.json.gz",
            )

    return export
