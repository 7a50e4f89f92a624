"""`fsdpdoctor report`: the report of one run, in any format."""

from __future__ import annotations

from pathlib import Path

import click

from fsdpdoctor.cli.inputs import jobs_option, measure_run
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.output import (
    chosen_format,
    format_option,
    json_option,
    out_option,
    print_report,
    print_text,
)
from fsdpdoctor.open_paths import ReadOptions, open_paths
from fsdpdoctor.renderers.html import render
from fsdpdoctor.report import report_of
from fsdpdoctor_dashboard.server.page_part import MARK_LIMIT
from fsdpdoctor_dashboard.server.standalone_page import timeline_of


@click.command(name="report")
@click.argument("run", type=GivenPath())
@format_option
@json_option
@out_option
@click.option(
    "--timeline",
    type=click.Choice(("part", "full", "none")),
    default="part",
    show_default=True,
    help="How much of the timeline an HTML page holds: as many steps as 1 MB, and "
    "ranks where they are many, all, or nothing.",
)
@jobs_option
def command(
    run: Path,
    format_: str | None,
    as_json: bool,
    out: Path | None,
    timeline: str,
    jobs: int | None,
) -> None:
    r"""Show the report of a run: terminal, Markdown, HTML or JSON.

    \b
    fsdpdoctor report latest
    fsdpdoctor report latest --format markdown
    fsdpdoctor report fsdpdoctor-runs/latest --out report.html
    """
    how = ReadOptions(jobs=jobs)
    opened = open_paths((run,), how)
    measures = measure_run(opened, how)
    report = report_of(measures, opened)
    chosen = chosen_format(format_, as_json=as_json, out=out)
    if chosen != "html" or timeline == "none":
        print_report(report, format_, as_json=as_json, out=out)
        return
    limit = MARK_LIMIT if timeline == "part" else None
    addition = timeline_of(opened, measures, report, limit=limit)
    print_text(render(report, addition), out)
