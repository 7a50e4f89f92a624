"""`fsdpdoctor viewer`: a page that opens reports without a server."""

from __future__ import annotations

from pathlib import Path

import click

from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.output import write_file
from fsdpdoctor_dashboard.server.viewer_page import viewer_page


@click.command(name="viewer")
@click.option(
    "--out",
    type=GivenPath(dir_okay=False),
    default=Path("viewer.html"),
    show_default=True,
    help="The page.",
)
def command(out: Path) -> None:
    r"""Write a page that opens reports: drop one or two on it. It needs no server and
    loads nothing, so it can be put anywhere.

    \b
    fsdpdoctor viewer
    fsdpdoctor viewer --out site/index.html
    """
    write_file(out, viewer_page())
