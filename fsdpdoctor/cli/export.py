"""`fsdpdoctor export`: a run becomes traces for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.cli.inputs import measure_run
from fsdpdoctor.errors import InputError
from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from fsdpdoctor.exporters.perfetto_run import write_run
from fsdpdoctor.open_paths import DEFAULT, open_paths
from fsdpdoctor.run import Run

PERFETTO = "perfetto"
PERFETTO_FILE = "perfetto.json.gz"

FILE_NAMES = {
    "kineto": "rank{rank}.kineto.json.gz",
    "tensorboard": "rank{rank}.pt.trace.json.gz",  # what its plugin looks for
    "hta": "rank{rank}.json.gz",
}
"""How each tool wants a rank's file called. The content is one and the same."""


@click.command(name="export")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "tool",
    required=True,
    type=click.Choice([PERFETTO, *FILE_NAMES]),
    help="The tool that is to read it.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the traces. Default: RUN/<tool>.",
)
def command(run: Path, tool: str, out: Path | None) -> None:
    r"""Write a run for another tool. The files say that fsdpdoctor made them.

    For Perfetto (https://ui.perfetto.dev) all ranks go into one file, a track for
    each lane, with exposed time and its causes on a track of its own, and arrows from
    the host's call to the collective and its wait. For the others each rank becomes a
    trace in the form of torch.profiler's, with its labels, launches and streams.

    \b
    fsdpdoctor export fsdpdoctor-runs/latest --to perfetto
    fsdpdoctor export fsdpdoctor-runs/latest --to hta --out traces
    """
    opened = open_paths((run,))
    folder = out if out is not None else _beside(run, tool)
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; give a new folder with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if tool == PERFETTO:
            measures = measure_run(opened, DEFAULT)
            _write_perfetto(opened, measures, folder / PERFETTO_FILE)
        else:
            _write_ranks(opened, folder, FILE_NAMES[tool])
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from None


def _beside(run: Path, tool: str) -> Path:
    """A folder in the run's own, or beside a trace that is one file."""
    return (run.parent if run.is_file() else run) / tool


def _write_ranks(run: Run, folder: Path, name: str) -> None:
    options = TraceOptions(made_from=_made_from(run), flows=True)
    for data in run.load():
        path = folder / name.format(rank=data.rank)
        write_trace(data, path, options)
        click.echo(f"wrote {path}", err=True)


def _made_from(run: Run) -> str:
    return f"a {run.header.source} run"


def _write_perfetto(run: Run, measures: Measures, path: Path) -> None:
    def left_out(rank: int) -> None:
        click.echo(f"left out: rank {rank} cannot be read", err=True)

    write_run(run, measures, path, left_out=left_out)
    click.echo(f"wrote {path}: open it in https://ui.perfetto.dev", err=True)
