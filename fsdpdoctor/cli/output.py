"""Prints a report in a format, to a file or to stdout."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.renderers import RENDERERS
from fsdpdoctor.report import Report
from fsdpdoctor.report.costs import SEVERITY
from fsdpdoctor.report.value import FindingRow

if TYPE_CHECKING:
    from fsdpdoctor.renderers.tables import Table

FORMAT_OF_SUFFIX = {".json": "json", ".md": "markdown", ".html": "html", ".htm": "html"}
"""What `--out` says where `--format` does not."""

format_option = click.option(
    "--format",
    "format_",
    type=click.Choice(list(RENDERERS)),
    help="How to print it. Default: text, or what the name of --out says.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Short for --format json."
)
fail_on_option = click.option(
    "--fail-on",
    type=click.Choice(list(SEVERITY)),
    help="Exit with 1 where a finding is this severe or worse.",
)
out_option = click.option(
    "--out",
    type=GivenPath(dir_okay=False),
    help="Write to this file instead of the terminal.",
)


def chosen_format(format_: str | None, *, as_json: bool, out: Path | None) -> str:
    """The format that the options ask for."""
    if as_json:
        return "json"
    suffix = out.suffix.lower() if out is not None else ""
    return format_ or FORMAT_OF_SUFFIX.get(suffix, "text")


def print_report(
    report: Report, format_: str | None, *, as_json: bool, out: Path | None
) -> None:
    """Write a report where and how the options say."""
    chosen = chosen_format(format_, as_json=as_json, out=out)
    if out is not None:
        write_file(out, RENDERERS[chosen](report))
    elif chosen == "text":
        from fsdpdoctor.cli.processes.terminal import Terminal
        from fsdpdoctor.renderers.text import show

        never_fail_to_encode()
        show(report, Terminal())
    else:
        never_fail_to_encode()
        click.echo(RENDERERS[chosen](report), nl=False)


def exit_on(fail_on: str | None, findings: Sequence[FindingRow]) -> None:
    """End with 1 where a finding is as severe as `--fail-on` says, or worse."""
    if fail_on is not None and any(
        SEVERITY[finding.severity] >= SEVERITY[fail_on] for finding in findings
    ):
        raise SystemExit(1)


def print_text(text: str, out: Path | None) -> None:
    """Write what is rendered already to a file or to stdout."""
    if out is not None:
        write_file(out, text)
        return
    never_fail_to_encode()
    click.echo(text, nl=False)


def print_tables(tables: Sequence[Table], lines: Sequence[str]) -> None:
    """Print tables beside a report, and what is said of them."""
    from fsdpdoctor.cli.processes.terminal import Terminal
    from fsdpdoctor.renderers.text import show_tables

    console = Terminal()
    show_tables(tables, lines, console)


def write_file(path: Path, text: str) -> None:
    """Write a whole file, and say so on stderr."""
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise FsdpDoctorError(f"cannot write {path}: {error.strerror}") from None
    click.echo(f"wrote {path}", err=True)


def never_fail_to_encode() -> None:
    """A terminal that lacks a character gets its escape, not a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
