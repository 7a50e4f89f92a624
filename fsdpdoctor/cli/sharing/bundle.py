"""`fsdpdoctor bundle`: a run as one archive, to give to whoever is to look at it."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

import click

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.sharing.names import without_names
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.open_paths import ReadOptions, open_paths
from fsdpdoctor.renderers.markdown import render as render_markdown
from fsdpdoctor.report import report_of
from fsdpdoctor.report.value import encode
from fsdpdoctor.run import Run, open_run, save_run

ARCHIVE = "fsdpdoctor-bundle.tar.gz"

WHAT_IS_LEFT_OUT = """\
Made by `fsdpdoctor bundle --redact`. `run/` opens with `fsdpdoctor analyze run`.

Left out: names of hosts and users, folders of files, the command line, environment
variables, addresses and URLs, what exceptions said, and lines of code.
Kept: times, counts, bytes, versions, names of functions and files, {names}.
Read report.md, and `strings` of run/, before you give it away.
"""


@click.command(name="bundle")
@click.argument("run", type=GivenPath())
@click.option(
    "--redact",
    is_flag=True,
    help="Leave out hosts, users, folders, the command line, the environment, what "
    "errors said and lines of code. Secrets are left out of every record.",
)
@click.option(
    "--mask-names",
    is_flag=True,
    help="Also replace names of modules, classes and files. Implies --redact.",
)
@click.option(
    "--out",
    type=GivenPath(dir_okay=False),
    default=Path(ARCHIVE),
    show_default=True,
    help="The archive.",
)
def command(run: Path, redact: bool, mask_names: bool, out: Path) -> None:
    r"""Pack RUN, with its report as Markdown and JSON, into one archive.

    \b
    fsdpdoctor bundle latest
    fsdpdoctor bundle latest --redact --out for-the-issue.tar.gz
    """
    opened = open_paths((run,), ReadOptions())
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "run"
        if redact or mask_names:
            opened = without_names(opened, mask=mask_names)
        _save(opened, folder)
        kept = open_run(folder)
        report = report_of(measure(kept), kept)
        (Path(made) / "report.md").write_text(render_markdown(report), "utf-8")
        (Path(made) / "report.json").write_text(encode(report), "utf-8")
        if redact or mask_names:
            names = "names of units" if not mask_names else "units by their places"
            note = WHAT_IS_LEFT_OUT.format(names=names)
            (Path(made) / "LEFT_OUT.txt").write_text(note, "utf-8")
        _pack(Path(made), out)
    click.echo(f"wrote {out}", err=True)


def _save(run: Run, folder: Path) -> None:
    try:
        save_run(run, folder)
    except OSError as error:
        raise FsdpDoctorError(f"cannot write {folder}: {error.strerror}") from None


def _pack(folder: Path, out: Path) -> None:
    """All files of a folder, by name, owned by nobody and of no date."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            member = tarfile.TarInfo(f"fsdpdoctor/{path.relative_to(folder)}")
            member.size = path.stat().st_size
            with path.open("rb") as file:
                archive.addfile(member, file)
    try:
        out.write_bytes(buffer.getvalue())
    except OSError as error:
        raise FsdpDoctorError(f"cannot write {out}: {error.strerror}") from None
