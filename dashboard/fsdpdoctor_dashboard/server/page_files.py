"""What every page is made with beside the timeline: one script, one style sheet.

A page asks for each file that Dash finds among the assets, and asks anew each time it
is opened: nine requests beside the first picture, over a tunnel a round trip each, and
the style sheet's before it. So ours go as two, named by what is in them, which a
browser keeps.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from flask import Blueprint, Response

from fsdpdoctor_dashboard.timeline.scripts import without_comments

ASSETS = Path(__file__).parents[1] / "assets"

YEAR_SECONDS = 31_536_000

SCRIPT, STYLE = "page.js", "style.css"
_TYPES = {SCRIPT: "text/javascript", STYLE: "text/css"}


@cache
def content(name: str) -> str:
    """All our files of a kind in one."""
    files = sorted(ASSETS.glob(f"*{Path(name).suffix}"))
    texts = (file.read_text(encoding="utf-8") for file in files)
    return "".join(map(without_comments, texts) if name == SCRIPT else texts)


@cache
def _address(name: str) -> str:
    """Where it is, which changes with it."""
    return f"{name}?{hashlib.sha256(content(name).encode()).hexdigest()[:16]}"


def style_element(prefix: str) -> str:
    """What stands in a page's head."""
    return f'<link rel="stylesheet" href="{prefix}{_address(STYLE)}">'


def script_element(prefix: str) -> str:
    """What stands before Dash's own scripts, which ask for functions of ours."""
    return f'<script src="{prefix}{_address(SCRIPT)}"></script>'


def kept(text: str, mimetype: str) -> Response:
    """An answer whose address never means anything else."""
    answer = Response(text, mimetype=mimetype)
    answer.headers["Cache-Control"] = f"private, max-age={YEAR_SECONDS}, immutable"
    return answer


def page_routes() -> Blueprint:
    """The routes of both."""
    routes = Blueprint("page_files", __name__)

    @routes.get(f"/<any('{SCRIPT}', '{STYLE}'):name>")
    def file(name: str) -> Response:
        return kept(content(name), _TYPES[name])

    return routes
