"""`fsdpdoctor compare`: what differs between two runs."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from fsdpdoctor.cli.inputs import jobs_option, measure_run
from fsdpdoctor.cli.output import never_fail_to_encode
from fsdpdoctor.open_paths import ReadOptions, open_paths
from fsdpdoctor.renderers.comparison import show_comparison
from fsdpdoctor.report import report_of
from fsdpdoctor.report.comparison import Subject, compare, encode_comparison


@click.command(name="compare")
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@jobs_option
def command(run_a: Path, run_b: Path, as_json: bool, jobs: int | None) -> None:
    r"""Show what differs from RUN_A to RUN_B: settings, then times beyond noise.

    \b
    fsdpdoctor compare fsdpdoctor-runs/before fsdpdoctor-runs/after
    fsdpdoctor compare before after --json
    """
    comparison = compare(_subject(run_a, jobs), _subject(run_b, jobs))
    never_fail_to_encode()
    if as_json:
        click.echo(encode_comparison(comparison), nl=False)
    else:
        show_comparison(comparison, Console(highlight=False, markup=False))


def _subject(path: Path, jobs: int | None) -> Subject:
    how = ReadOptions(jobs=jobs)
    measures = measure_run(open_paths((path,), how), how)
    return Subject(name=str(path), measures=measures, report=report_of(measures))
