"""`fsdpdoctor analyze`: a recorded run, or traces, become a report."""

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

SEVERITIES = ("critical", "warning", "info")
"""Worst first."""


@click.command(name="analyze")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@format_option
@json_option
@out_option
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help="Exit with 1 where a finding is this severe or worse.",
)
@click.option(
    "--no-cache",
    "cache",
    flag_value=False,
    default=True,
    help="Parse traces anew, and keep nothing of it.",
)
@click.option(
    "--rank-regex",
    metavar="REGEX",
    help="Finds the rank in the traces' file names, where they do not say it.",
)
@jobs_option
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[Path, ...],
    format_: str | None,
    as_json: bool,
    out: Path | None,
    fail_on: str | None,
    cache: bool,
    rank_regex: str | None,
    jobs: int | None,
) -> None:
    r"""Diagnose a recorded run, or traces of torch.profiler.

    PATH is the folder that `fsdpdoctor run` printed, or `latest`; or trace files,
    a folder of them, a glob. A job on several hosts may have left a folder on each:
    give them all.

    \b
    fsdpdoctor analyze fsdpdoctor-runs/latest
    fsdpdoctor analyze traces/
    fsdpdoctor analyze latest --format html --out report.html
    fsdpdoctor analyze node0/run node1/run --json --fail-on critical
    """
    how = Reading(jobs=jobs, cache=cache, rank_regex=rank_regex)
    report = report_of(measure_paths(paths, how))
    print_report(report, format_, as_json=as_json, out=out)
    if fail_on is not None:
        failing = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
        if any(finding.severity in failing for finding in report.findings):
            ctx.exit(1)
