"""plotly.js as a page gets it: as much of it as is used, packed, and fetched ahead.

Dash loads it whole when the first chart is there, each time anew: 4.8 MB, most of which
draws globes and surfaces, and a browser needs four times as long to compile them. So
this package carries plotly's own cartesian bundle, as published on npm:

    npm pack plotly.js-cartesian-dist-min@VERSION
    (echo '//# allFunctionsCalledOnLoad'
     tar -xOf *.tgz package/plotly-cartesian.min.js) | gzip -9n > cartesian.min.js.gz

The line in front has Chromium compile all of it at once, beside the page's own thread:
function by function, as each is called first, it takes that thread twice as long.
It is served where the installed plotly is of the same major version; else that one's
own script is. Both have an address that changes with the version, so that browsers keep
them; charts.js takes it while nobody waits.
"""

from __future__ import annotations

import gzip
import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from flask import Blueprint, Response, request
from isal import igzip

YEAR_SECONDS = 31_536_000
NAME = "plotly.js"
BUNDLE = Path(__file__).parents[1] / "vendor" / "cartesian.min.js.gz"
LEVEL = 3
"""Of packing: the last that takes no longer than sending what it saves."""
AT_ONCE = b"//# allFunctionsCalledOnLoad\n"
HEAD_BYTES = 400
"""Of a script, in which its version stands."""


class Script(NamedTuple):
    """A script of plotly's, packed."""

    version: str
    packed: bytes


def version_of(head: bytes) -> str:
    """What the first lines of a plotly.js say; empty: nothing."""
    found = re.search(rb"plotly\.js[^\n]* v([\d.]+)", head)
    return found[1].decode() if found else ""


def chosen(bundle: Path, installed: Path) -> Script:
    """The bundle, or the installed script where that is of another major version."""
    packed = bundle.read_bytes()
    version = version_of(gzip.decompress(packed)[:HEAD_BYTES])
    with installed.open("rb") as file:
        theirs = version_of(file.read(HEAD_BYTES))
    if version.split(".")[0] == theirs.split(".")[0]:
        return Script(version, packed)
    whole = igzip.compress(AT_ONCE + installed.read_bytes(), compresslevel=LEVEL)
    return Script(f"{theirs}-whole", whole)


@cache
def _script() -> Script:
    found = importlib.util.find_spec("plotly")  # not imported: that takes a while
    assert found is not None
    assert found.origin is not None
    return chosen(BUNDLE, Path(found.origin).parent / "package_data" / "plotly.min.js")


def plotly_address(prefix: str) -> str:
    """Where a page finds it; another version has another address."""
    return f"{prefix}{NAME}?{_script().version}"


def plotly_routes() -> Blueprint:
    """The route of the script."""
    routes = Blueprint("plotly", __name__)

    @routes.get(f"/{NAME}")
    def script() -> Response:
        packed = _script().packed
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            answer = Response(packed, mimetype="text/javascript")
            answer.headers["Content-Encoding"] = "gzip"
        else:
            answer = Response(gzip.decompress(packed), mimetype="text/javascript")
        answer.headers["Vary"] = "Accept-Encoding, Cookie"
        answer.headers["Cache-Control"] = f"private, max-age={YEAR_SECONDS}, immutable"
        return answer

    return routes
