"""`fsdpdoctor export`: a run for other tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click

from fsdpdoctor.cli.inputs import measure_run
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.sharing.names import without_names
from fsdpdoctor.errors import InputError, UsageError, need
from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from fsdpdoctor.exporters.perfetto_run import write_run
from fsdpdoctor.open_paths import DEFAULT, open_paths
from fsdpdoctor.quantities import count
from fsdpdoctor.report import report_of
from fsdpdoctor.run import Run

PERFETTO_FILE = "perfetto.json.gz"

OTLP = "otlp"

TENSORBOARD_FILE = "rank{rank}.pt.trace.json.gz"
"""What its profiler plugin looks for."""


def _beside(run: Path, tool: str) -> Path:
    """A folder in the run's own, or beside a trace that is one file."""
    return (run.parent if run.is_file() else run) / tool


Writer = Callable[[Run, Path], Iterator[str | Path]]
"""Writes a run into a folder; yields what it wrote, to be said."""


def _traces(run: Run, folder: Path, *, name: str) -> Iterator[Path]:
    options = TraceOptions(made_from=f"a {run.header.source} run", flows=True)
    for data in run.load():
        path = folder / name.format(rank=data.rank)
        write_trace(data, path, options)
        yield path


def _perfetto(run: Run, folder: Path) -> Iterator[str]:
    def left_out(rank: int) -> None:
        click.echo(f"left out: rank {rank} cannot be read", err=True)

    path = folder / PERFETTO_FILE
    write_run(run, measure_run(run, DEFAULT), path, left_out=left_out)
    yield f"{path}: open it in https://ui.perfetto.dev"


def _tensorboard(run: Run, folder: Path) -> Iterator[Path]:
    from fsdpdoctor.integrations.tensorboard import write_events

    yield from _traces(run, folder, name=TENSORBOARD_FILE)
    measures = measure_run(run, DEFAULT)
    yield from write_events(measures, report_of(measures, run), folder)


def _tables(run: Run, folder: Path, *, suffix: str) -> Iterator[Path]:
    from fsdpdoctor.integrations.tables import WRITERS, tables_of

    measures = measure_run(run, DEFAULT)
    for name, table in tables_of(report_of(measures, run), measures).items():
        path = folder / f"{name}.{suffix}"
        WRITERS[suffix](table, path)
        yield path


def _send(run: Run, folder: Path | None) -> None:
    from fsdpdoctor.integrations.spans import send

    if folder is not None:
        raise UsageError("spans are sent, and not written: otlp takes no folder")
    click.echo(f"sent {count(send(run), 'span')}", err=True)


WRITERS: dict[str, Writer] = {
    "perfetto": _perfetto,
    "kineto": partial(_traces, name="rank{rank}.kineto.json.gz"),
    "tensorboard": _tensorboard,
    "hta": partial(_traces, name="rank{rank}.json.gz"),
    "csv": partial(_tables, suffix="csv"),
    "parquet": partial(_tables, suffix="parquet"),
}
"""By tool. Traces differ in how each tool wants a rank's file called, alone."""


@click.command(name="export")
@click.argument("run", type=GivenPath())
@click.argument("folder", required=False, type=GivenPath(file_okay=False))
@click.option(
    "--to",
    "tool",
    required=True,
    type=click.Choice([*WRITERS, OTLP]),
    help="The tool that is to read it.",
)
@click.option(
    "--out",
    type=GivenPath(file_okay=False),
    help="The same as FOLDER. Default: RUN/<tool>.",
)
@click.option(
    "--redact",
    is_flag=True,
    help="Leave out what `bundle --redact` does: hosts, users, folders, ...",
)
@click.option(
    "--mask-names",
    is_flag=True,
    help="Also replace names of modules, classes and files. Implies --redact.",
)
def command(
    run: Path,
    folder: Path | None,
    tool: str,
    out: Path | None,
    redact: bool,
    mask_names: bool,
) -> None:
    r"""Write a run for another tool, into FOLDER.

    For Perfetto (https://ui.perfetto.dev) all ranks go into one file, a track for
    each lane, with exposed time and its causes on a track of its own, and arrows from
    the host's call to the collective and its wait. For kineto and hta each rank becomes
    a trace in the form of torch.profiler's, with its labels, launches and streams,
    which says that fsdpdoctor made it.

    For TensorBoard there are a chart for each figure of a step, each rank a line, the
    report and its units as text, and the traces, for its profiler plugin.

    csv and parquet write every table, a file each; Parquet needs pyarrow (pip install
    'fsdpdoctor[parquet]').

    otlp sends spans to an OpenTelemetry collector, at OTEL_EXPORTER_OTLP_ENDPOINT (pip
    install 'fsdpdoctor[otlp]').

    \b
    fsdpdoctor export fsdpdoctor-runs/latest --to perfetto
    fsdpdoctor export --to tensorboard latest logs && tensorboard --logdir logs
    fsdpdoctor export --to csv latest tables
    """
    if folder is not None and out is not None:
        raise UsageError("the folder is given twice, as FOLDER and by --out")
    if tool == "parquet":
        need("pyarrow", "parquet")
    opened = open_paths((run,))
    if redact or mask_names:
        opened = without_names(opened, mask=mask_names)
    if tool == OTLP:
        _send(opened, folder or out)
        return
    folder = folder or out or _beside(run, tool)
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; give a new folder with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in WRITERS[tool](opened, folder):
            click.echo(f"wrote {path}", err=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from None
