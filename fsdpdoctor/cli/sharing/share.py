"""`fsdpdoctor share`: one file and one picture of a run, for others to look at."""

from __future__ import annotations

from pathlib import Path

import click

from fsdpdoctor.cli.inputs import jobs_option, measure_run
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.output import write_file
from fsdpdoctor.errors import FsdpDoctorError, MissingDependencyError
from fsdpdoctor.open_paths import ReadOptions, open_paths
from fsdpdoctor.renderers.html import render
from fsdpdoctor.renderers.reading.anonymous import anonymous, stand_for
from fsdpdoctor.report import report_of
from fsdpdoctor_dashboard.server.card_png import card_png
from fsdpdoctor_dashboard.server.page_part import MARK_LIMIT
from fsdpdoctor_dashboard.server.share_card import share_card
from fsdpdoctor_dashboard.server.standalone_page import page_of, store_of

REPORT, PICTURE, PIXELS = "report.html", "card.svg", "card.png"


@click.command(name="share")
@click.argument("run", type=GivenPath())
@click.option(
    "--out",
    type=GivenPath(file_okay=False),
    help="The folder for its files. Default: fsdpdoctor-share.",
)
@click.option(
    "--anonymous",
    "hide",
    is_flag=True,
    help="Replace the names of modules, classes, files and hosts, and leave out what "
    "errors say. Read it before you give it away.",
)
@jobs_option
def command(run: Path, out: Path | None, hide: bool, jobs: int | None) -> None:
    r"""Write what shows a run to others: a page that needs no server and loads nothing,
    and a picture of 1200 by 630 pixels with the verdict, the budget and a step: SVG,
    and PNG with `pip install 'fsdpdoctor[share]'`.

    \b
    fsdpdoctor share latest
    fsdpdoctor share latest --anonymous --out for-the-issue
    """
    how = ReadOptions(jobs=jobs)
    opened = open_paths((run,), how)
    measures = measure_run(opened, how)
    report = report_of(measures, opened)
    stand = stand_for(report) if hide else None
    store = store_of(opened, measures, stand)
    judged = report
    if stand is not None:
        report = anonymous(report, stand)
    folder = out or Path("fsdpdoctor-share")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FsdpDoctorError(f"cannot make {folder}: {error.strerror}") from None
    picture = share_card(report, store)
    addition = page_of(measures, store, judged, limit=MARK_LIMIT)
    write_file(folder / REPORT, render(report, addition, picture))
    write_file(folder / PICTURE, picture)
    _write_png(folder / PIXELS, picture)


def _write_png(path: Path, picture: str) -> None:
    """The picture as PNG, or one line that says what it takes."""
    try:
        pixels = card_png(picture)
    except MissingDependencyError as error:
        click.echo(str(error), err=True)
        return
    try:
        path.write_bytes(pixels)
    except OSError as error:
        raise FsdpDoctorError(f"cannot write {path}: {error.strerror}") from None
    click.echo(f"wrote {path}", err=True)
