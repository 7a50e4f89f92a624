"""The app: one Dash application over a library of runs, guarded and read-only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlencode

import dash
from dash import ClientsideFunction, Input, Output, State, dcc, html
from dash.development.base_component import Component
from flask import request

from fsdpdoctor.network import Link
from fsdpdoctor.renderers.formatting import visible
from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun, UnknownRunError
from fsdpdoctor_dashboard.data.run_summaries import Summaries
from fsdpdoctor_dashboard.pages.components import Context, so_far
from fsdpdoctor_dashboard.pages.requests.ahead import ahead_routes, begin
from fsdpdoctor_dashboard.pages.requests.first_page import first_page
from fsdpdoctor_dashboard.pages.requests.made_pages import MadePages
from fsdpdoctor_dashboard.pages.requests.page_request import (
    CHOICES,
    PAGES,
    PLOTS,
    RUNS,
    PageRequest,
    key_of,
)
from fsdpdoctor_dashboard.pages.whatif_callbacks import register
from fsdpdoctor_dashboard.server.api import api_routes
from fsdpdoctor_dashboard.server.download_routes import export_routes
from fsdpdoctor_dashboard.server.first_paint import early_routes, first_picture
from fsdpdoctor_dashboard.server.page_files import (
    ASSETS,
    page_routes,
    script_element,
    style_element,
)
from fsdpdoctor_dashboard.server.plotly_script import plotly_routes
from fsdpdoctor_dashboard.server.presence import Presence, presence_routes
from fsdpdoctor_dashboard.server.security import Guard
from fsdpdoctor_dashboard.server.tile_middleware import with_quick_tiles
from fsdpdoctor_dashboard.timeline.component import Timeline

POLL_MS = 700
PATIENCE_S = 0.25
"""For a page to be made before its address is answered: then the answer has it."""
THEME, THEMES = "fsdpdoctor-theme", ("light", "dark")
"""The cookie that says which somebody likes, or their system does: see page.js."""
WHOLE = ("", "units", "collectives", "ranks", "memory", "explain")
"""Pages that are all there at once: others ask for more, or are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How the app is reached, and what network its runs had."""

    token: str
    prefix: str = "/"  # as the browser sees it; a proxy may strip it
    hosts: tuple[str, ...] = ()  # names beside 127.0.0.1 and localhost
    network: Link | None = None  # that figures are held against
    presence: Presence = field(default_factory=Presence)


COMPONENTS = (Timeline,)
"""Dash serves a component's files once its class was imported."""


def make_app(library: Library, serving: Serving) -> dash.Dash:
    """The Dash application; `app.server` is the Flask server below it."""
    app = _App(
        "fsdpdoctor_dashboard",
        title="fsdpdoctor",
        update_title="",
        assets_folder=str(ASSETS),
        assets_ignore=".",  # see page_files: a page asks for ours as two files
        requests_pathname_prefix=serving.prefix,
        routes_pathname_prefix="/",
        serve_locally=True,
        suppress_callback_exceptions=True,
        enable_mcp=False,
        index_string=INDEX,
    )
    app.library, app.serving = library, serving
    app.summaries = Summaries(library)
    app.made = MadePages()
    app.enable_dev_tools(debug=False, dev_tools_ui=False, dev_tools_hot_reload=False)
    app.layout = _layout()
    _callbacks(app, library, serving)
    register(app, library, serving.prefix)
    app.server.register_blueprint(api_routes(library))
    app.server.register_blueprint(export_routes(library))
    app.server.register_blueprint(early_routes())
    app.server.register_blueprint(page_routes())
    app.server.register_blueprint(plotly_routes())
    ahead = ahead_routes(library, serving.prefix, serving.network, app.made)
    app.server.register_blueprint(ahead)
    app.server.register_blueprint(presence_routes(serving.presence))
    guard = Guard(
        token=serving.token,
        hosts=serving.hosts,
        prefix=serving.prefix,
        script_hashes=app.csp_hashes(),
    )
    guard.protect(app.server)
    app.server.wsgi_app = with_quick_tiles(app.server.wsgi_app, library, guard)
    return app


# Ours come before Dash's own: see first_paint.js and page_files. Dash does the rest.
INDEX = """<!DOCTYPE html>
<html lang="en"><head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}<!--style-->
<meta name="viewport" content="width=device-width, initial-scale=1"></head><body>
<noscript>The dashboard needs JavaScript. Without it: fsdpdoctor analyze, or fsdpdoctor
report --out report.html, whose tables and words need none.</noscript>
<!--early-->{%app_entry%}<footer>{%config%}<!--script-->{%scripts%}{%renderer%}</footer></body></html>
"""


class _App(dash.Dash):
    """Dash, with the timeline's first picture in the page itself."""

    library: Library
    serving: Serving
    summaries: Summaries
    made: MadePages

    def interpolate_index(  # type: ignore[override]
        self, **parts: str
    ) -> str:
        """Dash's page with the first picture in front."""
        begin(request.path.strip("/"))
        page = str(super().interpolate_index(**parts))  # type: ignore[no-untyped-call]
        prefix = self.serving.prefix
        charts = " ".join(PLOTS)
        early = first_picture(self.library, prefix, charts)
        ours = {
            "<!--style-->": style_element(prefix),
            "<!--script-->": script_element(prefix),
            "<!--early-->": self._first_page() + early,
        }
        for mark, element in ours.items():
            page = page.replace(mark, element, 1)
        return page

    def _first_page(self) -> str:
        """The page that is asked for, where it is of a run that is open and is soon
        made; else Dash asks for it.
        """
        serving, library = self.serving, self.library
        path = f"{serving.prefix}{request.path.lstrip('/')}"
        asked = _asked(self, library, path, request.query_string.decode())
        theme, _, how = request.cookies.get(THEME, "").partition("-")
        if theme not in THEMES:
            theme, how = THEMES[0], "guessed"
        if asked.page not in WHOLE or not (runs := _open_runs(library, asked)):
            return ""
        context = _context(serving, asked, runs, theme)
        key = (*key_of(asked, runs, theme), theme)
        page = self.made.soon(PAGES[asked.page][1], key, context, PATIENCE_S)
        if page is None:
            return ""
        header = _first_header(serving, library, asked)
        return first_page(header, page, theme, guessed=bool(how))


def _first_header(serving: Serving, library: Library, asked: PageRequest) -> Component:
    return html.Header(
        [
            dcc.Link("fsdpdoctor", href=serving.prefix, className="brand"),
            html.Nav(_nav(serving, library, asked)),
            html.Div(_runs(serving, library, asked), className="runs"),
            html.Button("Theme"),
        ]
    )


def _open_runs(library: Library, asked: PageRequest) -> list[OpenRun]:
    """The runs that are asked for; none where one of them is not open."""
    try:
        found = [library.get(run_id) for run_id in asked.runs]
    except UnknownRunError:
        return []
    runs = [run for run in found if isinstance(run, OpenRun)]
    return runs if len(runs) == len(found) else []


def _context(
    serving: Serving, asked: PageRequest, runs: Sequence[OpenRun], theme: str
) -> Context:
    return Context(
        base=serving.prefix,
        theme=theme,
        runs=tuple(runs),
        query=asked.choices,
        network=serving.network,
    )


def _layout() -> Component:
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="theme"),
            dcc.Store(id="shown"),
            dcc.Store(id="state"),
            # Runs only while a run is being read or is still being written.
            dcc.Interval(id="tick", interval=POLL_MS, disabled=True),
            html.A("Skip to the page", href="#page", className="skip"),
            html.Header(
                [
                    dcc.Link("fsdpdoctor", href="", className="brand", id="brand"),
                    _nav_landmark(),
                    html.Span(id="ending", role="status"),
                    html.Div(id="runs", className="runs"),
                    html.Button("Theme", id="theme-button", title="light or dark"),
                ],
                id="header",
            ),
            html.Div(id="page"),
        ]
    )


def _nav_landmark() -> Component:
    nav = html.Nav(id="nav")
    setattr(nav, "aria-label", "pages")
    return nav


def _asked(app: dash.Dash, library: Library, pathname: str, search: str) -> PageRequest:
    query = parse_qs(search.lstrip("?"))
    first = query.get("run", [library.entries[0].id])[0]
    runs = [first, *query.get("with", [])[:1]]
    page = app.strip_relative_path(pathname) or ""
    # Which of several runs stands first in the folder says nothing.
    if not page and "run" not in query and len(library.entries) > 1:
        page = RUNS
    return PageRequest(
        page=page,
        runs=tuple(runs),
        choices={name: query[name][0] for name in CHOICES if name in query},
    )


def _callbacks(app: dash.Dash, library: Library, serving: Serving) -> None:
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("fsdpdoctor", "theme"),
        Output("theme", "data"),
        Input("theme-button", "n_clicks"),
        State("theme", "data"),
    )

    @app.callback(
        Output("nav", "children"),
        Output("runs", "children"),
        Output("brand", "href"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("state", "data"),
    )
    def show_header(
        pathname: str, search: str, _: object
    ) -> tuple[object, object, str]:
        asked = _asked(app, library, pathname, search)
        if asked.page == RUNS:  # no run's pages before one is chosen
            return _nav(serving, library, asked)[:1], None, serving.prefix
        overview = f"{serving.prefix}?{asked.query}"
        return _nav(serving, library, asked), _runs(serving, library, asked), overview

    @app.callback(
        Output("state", "data"),
        Input("tick", "n_intervals"),
        State("url", "pathname"),
        State("url", "search"),
        State("state", "data"),
        prevent_initial_call=True,
    )
    def look(_: int, pathname: str, search: str, before: str | None) -> object:
        asked = _asked(app, library, pathname, search)
        state = _state(library, asked)
        if asked.page == RUNS:
            app.summaries.known()
            state = f"{RUNS} {app.summaries.version}"
        return dash.no_update if state == before else state

    @app.callback(
        Output("page", "children"),
        Output("shown", "data"),
        Output("tick", "disabled"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("theme", "data"),
        Input("state", "data"),
        State("shown", "data"),
    )
    def show_page(
        pathname: str,
        search: str,
        theme: str | None,
        _: str | None,
        shown: list[str] | None,
    ) -> tuple[object, object, object]:
        asked = _asked(app, library, pathname, search)
        if asked.page == RUNS:
            return _show_runs(serving, library, app.summaries, shown)
        return _show(library, serving, app.made, asked, theme or "light", shown)


def _state(library: Library, asked: PageRequest) -> str:
    """How far the runs are, in words that change when there is something new."""
    words = []
    for run_id in asked.runs:
        try:
            found = library.get(run_id)
        except UnknownRunError:
            continue
        if isinstance(found, OpenRun):
            words.append(f"{run_id}@{found.revision}")
        else:
            words.append(found.error or found.words)
    return "; ".join(words)


def _show(
    library: Library,
    serving: Serving,
    made: MadePages,
    asked: PageRequest,
    theme: str,
    shown: list[str] | None,
) -> tuple[object, object, object]:
    """The page, what it shows, and whether there is nothing more to wait for."""
    try:
        found = [library.get(run_id) for run_id in asked.runs]
    except UnknownRunError as error:
        return _message(f"{error}: {asked.runs[0]}"), None, True
    runs = [run for run in found if isinstance(run, OpenRun)]
    if len(runs) < len(found):
        waiting = next(run for run in found if not isinstance(run, OpenRun))
        if waiting.error is not None:
            return _message(waiting.error, UNREADABLE), None, True
        return _loading(waiting.words, waiting.done, waiting.total), None, False
    state = key_of(asked, runs, theme)
    done = not any(run.live for run in runs)
    if state == shown:
        return dash.no_update, dash.no_update, done
    context = _context(serving, asked, runs, theme)
    # The timeline follows a growing run by itself, and its theme too.
    if shown is not None and state[:-1] == shown[:-1]:
        if asked.page == "timeline":
            _renew_side(context)
            return dash.no_update, state, done
        if asked.page == "whatif":  # its knobs stand where somebody set them
            dash.set_props("whatif-revision", {"data": runs[0].revision})
            dash.set_props("whatif-so-far", {"children": so_far(runs[0])})
            return dash.no_update, state, done
    if asked.page not in PAGES:
        return _message("There is no such page."), state, done
    module = PAGES[asked.page][1]
    return made.page(module, (*state, theme), context), state, done


def _show_runs(
    serving: Serving, library: Library, summaries: Summaries, shown: list[str] | None
) -> tuple[object, object, object]:
    """The table of runs, which grows as they are read."""
    from fsdpdoctor_dashboard.pages import runs

    known = summaries.known()
    state = [RUNS, str(summaries.version)]
    if state == shown:
        return dash.no_update, dash.no_update, False
    entries = runs.in_order(library.entries, known)
    return runs.page(serving.prefix, entries, known), state, False


def _renew_side(context: Context) -> None:
    from fsdpdoctor_dashboard.pages.timeline import SIDE, side

    dash.set_props(SIDE, {"children": side(context)})


UNREADABLE = "This run cannot be read"


def _message(text: str, title: str = "") -> Component:
    head = [html.H1(title)] if title else []
    return html.Main([*head, html.P(visible(text))])


def _loading(words: str, done: int, total: int) -> Component:
    known = html.Progress(value=str(done), max=str(total))
    bar = known if total else html.Progress()
    return html.Div([html.P(words), bar], className="loading", role="status")


def _nav(serving: Serving, library: Library, asked: PageRequest) -> Sequence[Component]:
    return [
        dcc.Link(
            title,
            href=f"{serving.prefix}{path}?{asked.query}",
            className="here" if path == asked.page else "",
        )
        for path, (title, _) in PAGES.items()
        if path != RUNS or len(library.entries) > 1
    ]


def _runs(serving: Serving, library: Library, asked: PageRequest) -> Component:
    """Every run by name: a click shows it, another sets it beside this one."""
    library.look()
    here = f"{serving.prefix}{asked.page}"
    lines = []
    for entry in library.entries:
        links = [
            dcc.Link(visible(entry.id), href=f"{here}?{urlencode({'run': entry.id})}")
        ]
        if entry.id not in asked.runs:
            both = urlencode({"run": asked.runs[0], "with": entry.id})
            links.append(dcc.Link("compare", href=f"{here}?{both}"))
        lines.append(html.P(links))
    title = " and ".join(visible(run) for run in asked.runs)
    listed = html.Details([html.Summary(title, title=title), html.Div(lines)])
    if not any(_going(library, run_id) for run_id in asked.runs):
        return listed
    return html.Div([html.Span("running", className="badge"), listed])


def _going(library: Library, run_id: str) -> bool:
    try:
        found = library.get(run_id)
    except UnknownRunError:
        return False
    return isinstance(found, OpenRun) and found.going
