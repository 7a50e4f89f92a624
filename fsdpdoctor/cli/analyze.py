"""`fsdpdoctor analyze`: a recorded run, or traces, become a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from fsdpdoctor.cli.inputs import (
    jobs_option,
    measure_run,
    rank_regex_option,
    scheduler_option,
)
from fsdpdoctor.cli.output import (
    chosen_format,
    exit_on,
    fail_on_option,
    format_option,
    json_option,
    never_fail_to_encode,
    out_option,
    print_report,
    print_tables,
    print_text,
)
from fsdpdoctor.errors import UsageError
from fsdpdoctor.open_paths import ReadOptions, open_paths, snapshot_files
from fsdpdoctor.report import Report, report_of
from fsdpdoctor.run import Run
from fsdpdoctor.storage.remote_path import path_of


@click.command(name="analyze")
@click.argument("paths", nargs=-1, required=True, type=path_of)
@format_option
@json_option
@out_option
@fail_on_option
@click.option(
    "--no-cache",
    "cache",
    flag_value=False,
    default=True,
    help="Parse traces anew, and keep nothing of it.",
)
@click.option(
    "--with-hta",
    is_flag=True,
    help="Also print HolisticTraceAnalysis's tables of the traces (idle time, kernels, "
    "launch queues), and its figures beside ours: below the text, or in the JSON.",
)
@rank_regex_option
@jobs_option
@scheduler_option
def command(
    paths: tuple[Path, ...],
    format_: str | None,
    as_json: bool,
    out: Path | None,
    fail_on: str | None,
    cache: bool,
    with_hta: bool,
    rank_regex: str | None,
    jobs: int | None,
    scheduler: str | None,
) -> None:
    r"""Diagnose a recorded run, traces of torch.profiler, or memory snapshots.

    PATH is the folder that `fsdpdoctor run` printed, or `latest`; or trace files,
    a folder of them, a glob. A job on several hosts may have left a folder on each:
    give them all. s3://, gs:// and other URLs are read through fsspec.

    \b
    fsdpdoctor analyze fsdpdoctor-runs/latest
    fsdpdoctor analyze traces/
    fsdpdoctor analyze latest --format html --out report.html
    fsdpdoctor analyze node0/run node1/run --json --fail-on critical

    Or PATH is what torch.cuda.memory._dump_snapshot wrote, of one rank or of several:
    what was held at the peak, by what it was for, by FSDP unit and by line.

    \b
    fsdpdoctor analyze rank0.pickle rank1.pickle

    With --with-hta, HolisticTraceAnalysis reads the same traces, in a process of its
    own (pip install 'fsdpdoctor[hta]', or name the python of an environment that has
    it in FSDPDOCTOR_HTA_PYTHON), and it is said why its figures differ from ours.

    Thousands of ranks can be read by a dask cluster (pip install
    'fsdpdoctor[cluster]' here and there); figures are the same to the nanosecond.
    As a Slurm job:

    \b
    #SBATCH --nodes=4 --ntasks-per-node=8 --cpus-per-task=1
    dask scheduler --host $(hostname) --port 8786 &
    srun dask worker tcp://$(hostname):8786 --nthreads 1 --memory-limit 2GB &
    sleep 20
    fsdpdoctor analyze s3://bucket/traces --scheduler tcp://$(hostname):8786
    """
    chosen = chosen_format(format_, as_json=as_json, out=out)
    snapshots = snapshot_files(paths)
    if snapshots:
        if fail_on is not None or with_hta:
            raise UsageError(
                "--fail-on and --with-hta are of runs: a memory snapshot has neither"
            )
        _print_snapshots(snapshots, chosen, out)
        return
    if with_hta and chosen not in ("text", "json"):
        raise UsageError(f"--with-hta adds to text and json: leave out {chosen}")
    how = ReadOptions(
        jobs=jobs, cache=cache, rank_regex=rank_regex, scheduler=scheduler
    )
    run = open_paths(paths, how)
    report = report_of(measure_run(run, how), run)
    if with_hta:
        _print_with_hta(report, run, chosen, out)
    else:
        print_report(report, format_, as_json=as_json, out=out)
    exit_on(fail_on, report.findings)


def _print_snapshots(files: Sequence[Path], format_: str, out: Path | None) -> None:
    from fsdpdoctor.memory_snapshot.compare_ranks import compare_ranks
    from fsdpdoctor.memory_snapshot.diagnose_snapshot import diagnose_snapshot
    from fsdpdoctor.renderers.snapshots import snapshot_pages

    if format_ not in snapshot_pages.SNAPSHOT_RENDERERS:
        raise UsageError(
            f"--format {format_} is of findings: a memory snapshot has none"
        )
    reports = tuple(diagnose_snapshot(path) for path in files)
    document = snapshot_pages.SnapshotDocument(
        snapshots=reports, comparison=compare_ranks(reports)
    )
    if format_ == "text" and out is None:
        from fsdpdoctor.cli.processes.terminal import Terminal

        never_fail_to_encode()
        console = Terminal()
        snapshot_pages.show_snapshots(document, console)
    else:
        print_text(snapshot_pages.SNAPSHOT_RENDERERS[format_](document), out)


def _print_with_hta(report: Report, run: Run, format_: str, out: Path | None) -> None:
    """HTA comes first: it may not be installed, and then nothing is printed."""
    from fsdpdoctor.integrations import hta, hta_json, hta_words

    tables = hta.hta_tables(run)
    ranks = hta.compared(run, tables)
    if format_ == "json":
        print_text(hta_json.encode_with_hta(report, tables, ranks), out)
        return
    print_report(report, format_, as_json=False, out=out)
    print_tables(
        [*hta_words.tables_in_words(tables, ranks)],
        [*hta_words.lines_in_words(tables, ranks)],
    )
