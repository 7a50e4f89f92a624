"""`fsdpdoctor export`: a run becomes traces for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from fsdpdoctor.cli.inputs import Reading, open_paths
from fsdpdoctor.errors import InputError
from fsdpdoctor.exporters.kineto import TraceOptions, write_trace

FILE_NAMES = {
    "perfetto": "rank{rank}.json.gz",
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
    type=click.Choice(list(FILE_NAMES)),
    help="The tool that is to read it.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the traces. Default: RUN/<tool>.",
)
def command(run: Path, tool: str, out: Path | None) -> None:
    r"""Write a run as traces, one file per rank, in the form of torch.profiler's.

    They say in their head that fsdpdoctor made them.

    \b
    fsdpdoctor export fsdpdoctor-runs/latest --to perfetto
    fsdpdoctor export fsdpdoctor-runs/latest --to hta --out traces
    """
    opened = open_paths((run,), Reading())
    folder = out if out is not None else run / tool
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; give a new folder with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for data in opened.load():
            path = folder / FILE_NAMES[tool].format(rank=data.rank)
            made_from = f"a {opened.header.source} run"
            write_trace(data, path, TraceOptions(made_from=made_from, flows=True))
            click.echo(f"wrote {path}", err=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from None
