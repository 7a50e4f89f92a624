"""`fsdpdoctor report`: the report of one run, in any format."""

from __future__ import annotations

from pathlib import Path

import click

from fsdpdoctor.cli.inputs import Reading, measure_paths
from fsdpdoctor.cli.output import (
    format_option,
    jobs_option,
    json_option,
    out_option,
    print_report,
)
from fsdpdoctor.report import report_of


@click.command(name="report")
@click.argument("run", type=click.Path(path_type=Path))
@format_option
@json_option
@out_option
@jobs_option
def command(
    run: Path,
    format_: str | None,
    as_json: bool,
    out: Path | None,
    jobs: int | None,
) -> None:
    r"""Show the report of a run: terminal, Markdown, HTML or JSON.

    \b
    fsdpdoctor report latest
    fsdpdoctor report latest --format markdown
    fsdpdoctor report fsdpdoctor-runs/latest --out report.html
    """
    report = report_of(measure_paths((run,), Reading(jobs=jobs)))
    print_report(report, format_, as_json=as_json, out=out)
