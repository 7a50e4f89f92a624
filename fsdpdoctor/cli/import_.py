"""`fsdpdoctor import`: traces become a run folder."""

from __future__ import annotations

from pathlib import Path

import click

from fsdpdoctor.cli.inputs import rank_regex_option
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.errors import FsdpDoctorError, InputError
from fsdpdoctor.open_paths import ReadOptions, open_paths
from fsdpdoctor.run import is_run_folder, save_run
from fsdpdoctor.storage.remote_path import path_of


@click.command(name="import")
@click.argument("paths", nargs=-1, required=True, type=path_of)
@click.option(
    "--out",
    required=True,
    type=GivenPath(file_okay=False),
    help="Folder of the new run.",
)
@rank_regex_option
def command(paths: tuple[Path, ...], out: Path, rank_regex: str | None) -> None:
    r"""Keep traces of torch.profiler as a run, which opens faster and is smaller.

    PATH is a trace file, a folder of them, a glob, or a URL that fsspec reads. All that
    was attributed is kept, also what lies outside the steps; CPU operators, stacks and
    arguments are not.

    \b
    fsdpdoctor import traces/ --out runs/monday
    fsdpdoctor analyze runs/monday
    """
    if is_run_folder(out):
        raise InputError(f"{out} holds a run already; give a new folder")
    run = open_paths(paths, ReadOptions(rank_regex=rank_regex))
    try:
        save_run(run, out)
    except OSError as error:
        raise FsdpDoctorError(f"cannot write {out}: {error.strerror}") from None
    click.echo(f"wrote {out}", err=True)
