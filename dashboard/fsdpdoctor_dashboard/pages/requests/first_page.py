"""A page's words and pictures in the answer to its address: no script before them.

Dash's own scripts take most of a page's first half second, and its callbacks ask twice
more. So the page that an address asks for comes as plain HTML first, made of the same
components; static_page.js takes it away when Dash's own is there with its charts. Who
has no scripts reads it all the same. See [Note: Stills] for the charts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from fsdpdoctor_dashboard.pages.pictures.still import still

EMPTY = frozenset({"img", "input", "br", "wbr", "hr"})
"""Elements without an end."""
ATTRIBUTES = {
    "className": "class",
    "colSpan": "colspan",
    "tabIndex": "tabindex",
    "id": "data-id",
}
"""Of a component, as HTML calls them; an id is that of the page which comes."""
LEFT_OUT = frozenset({"children", "style", "n_clicks", "key", "disabled"})
SILENT = (dcc.Store, dcc.Download, dcc.Interval, dcc.Location)
"""What nobody sees."""


def first_page(header: Component, page: Component, theme: str, *, guessed: bool) -> str:
    """The page; `guessed` where nobody has said which theme they like."""
    mark = " data-guessed" if guessed else ""
    inside = f"{html_of(header)}{html_of(page)}"
    return f'<div id="first-page" data-theme="{escape(theme)}"{mark}>{inside}</div>'


def html_of(part: object) -> str:
    """A component, or what stands among its children, as HTML."""
    if part is None:
        return ""
    if isinstance(part, list | tuple):
        return "".join(map(html_of, part))
    if not isinstance(part, Component):
        return escape(str(part))
    return "".join(_component(part))


def _component(part: Any) -> Iterator[str]:
    if isinstance(part, SILENT):
        return
    given = part.to_plotly_json()["props"]
    if isinstance(part, dcc.Graph):
        yield still(given["figure"])
        return
    if isinstance(part, dcc.Loading):
        yield html_of(given.get("children"))
        return
    tag = _tag(part)
    yield f"<{tag}{''.join(_attributes(given))}>"
    if tag not in EMPTY:
        yield html_of(given.get("children"))
        yield f"</{tag}>"


def _tag(part: Component) -> str:
    """An element's name; what Dash makes of several is a place for it."""
    if isinstance(part, dcc.Link):
        return "a"
    if isinstance(part, dcc.Input):
        return "input"
    if type(part).__module__.startswith(html.__name__):
        return type(part).__name__.lower()
    return "div"


def _attributes(given: Mapping[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        if name in LEFT_OUT or value is None or value is False:
            continue
        if isinstance(value, str | int | float):
            words = "" if value is True else escape(str(value))
            yield f' {ATTRIBUTES.get(name, name)}="{words}"'
    style = ";".join(
        f"{_dashed(name)}:{value}" for name, value in (given.get("style") or {}).items()
    )
    if style:
        yield f' style="{escape(style)}"'


def _dashed(name: str) -> str:
    """`backgroundColor` as CSS has it."""
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in name)
