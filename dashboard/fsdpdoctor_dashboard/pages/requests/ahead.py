"""Pages with figures are made ahead: while somebody reads another one."""

from __future__ import annotations

import threading
from importlib import import_module

from flask import Blueprint, request

from fsdpdoctor.network import Link
from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun, UnknownRunError
from fsdpdoctor_dashboard.pages.components import Context
from fsdpdoctor_dashboard.pages.requests.made_pages import MadePages
from fsdpdoctor_dashboard.pages.requests.page_request import (
    PAGES,
    PLOTS,
    PageRequest,
    key_of,
)


def begin(page: str) -> None:
    """Import what makes a page with figures, plotly most of it, while the browser that
    will ask for that page still starts.
    """
    if page in PLOTS:
        name = f"fsdpdoctor_dashboard.pages.{PAGES[page][1]}"
        threading.Thread(target=import_module, args=(name,), daemon=True).start()


def ahead_routes(
    library: Library, base: str, network: Link | None, made: MadePages
) -> Blueprint:
    """Asked while nobody waits: the pages with figures of a run that is open."""
    routes = Blueprint("ahead", __name__)
    busy = threading.Lock()

    @routes.get("/ahead")
    def ahead() -> tuple[str, int]:
        theme = "dark" if request.args.get("theme") == "dark" else "light"
        names = (request.args.get("run"), request.args.get("with"))
        ids = tuple(name for name in names if name) or (library.entries[0].id,)
        try:
            found = [library.get(run_id) for run_id in ids]
        except UnknownRunError:
            return "", 404
        runs = [run for run in found if isinstance(run, OpenRun)]
        if len(runs) < len(found) or not busy.acquire(blocking=False):
            return "", 204
        try:
            for page in PLOTS:
                asked = PageRequest(page=page, runs=ids, choices={})
                key = (*key_of(asked, runs, theme), theme)
                context = Context(
                    base=base, theme=theme, runs=tuple(runs), network=network
                )
                made.page(PAGES[page][1], key, context)
        finally:
            busy.release()
        return "", 204

    return routes
