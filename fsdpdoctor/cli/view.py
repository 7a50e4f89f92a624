"""`fsdpdoctor view`: runs in a browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.processes.leaving import leave
from fsdpdoctor.errors import MissingDependencyError, UsageError
from fsdpdoctor.network import Link, parse_link
from fsdpdoctor.open_paths import run_path

if TYPE_CHECKING:
    from fsdpdoctor_dashboard.serve import Address

NEEDS_DASH = "the dashboard needs dash: pip install 'fsdpdoctor[dashboard]'"


@click.command(name="view")
@click.argument("runs", nargs=-1, required=True, type=GivenPath())
@click.option(
    "--port",
    default=8050,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Where to listen; 0 takes a free port.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Which interface to listen on.",
)
@click.option(
    "--prefix",
    default="/",
    help="The path that a proxy serves this under and takes off, as "
    "/user/me/proxy/8050/ in Jupyter.",
)
@click.option(
    "--trust-host",
    "hosts",
    multiple=True,
    help="Another name that browsers may reach this under, such as the proxy's.",
)
@click.option(
    "--link",
    metavar="LINK",
    help="The network's link, as ib400 or 25GB/s: its peak is drawn beside the "
    "collectives' bandwidths.",
)
@click.option(
    "--browser/--no-browser", default=False, help="Open a browser on this machine."
)
def command(
    runs: tuple[Path, ...],
    port: int,
    host: str,
    prefix: str,
    hosts: tuple[str, ...],
    link: str | None,
    browser: bool,
) -> None:
    r"""Look at runs in a browser: what hurts, and the timeline that shows why.

    RUN is a run's folder, `latest`, a folder of traces, or a folder that holds
    several runs. A run that is still going is followed as it grows. Two runs can be
    set beside each other. Stop with Ctrl+C.

    \b
    fsdpdoctor view latest
    fsdpdoctor view fsdpdoctor-runs --port 0
    fsdpdoctor view before after
    fsdpdoctor view latest --link nvlink4
    """
    network = None if link is None else _link(link)
    try:
        from fsdpdoctor_dashboard.serve import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("fsdpdoctor"):
            raise
        raise MissingDependencyError(NEEDS_DASH) from None
    serve(
        [_pinned(run) for run in runs],
        announce=_announcer(browser),
        port=port,
        host=host,
        prefix=prefix,
        hosts=hosts,
        network=network,
    )
    leave()  # a run may still be being read


def _link(text: str) -> Link:
    try:
        return parse_link(text)
    except UsageError as error:  # it speaks of where links are given elsewhere
        raise UsageError(str(error).replace("--bandwidth", "--link", 1)) from None


def _pinned(path: Path) -> Path:
    """`latest` stays the run that is newest now, also when there is a newer one."""
    folder = run_path(path)
    return path if folder == path else folder.resolve()


def _announcer(browser: bool) -> Callable[[Address], None]:
    def announce(address: Address) -> None:
        click.echo(f"fsdpdoctor is at {address.url}")
        click.echo(f"from another machine: {address.tunnel}")
        click.echo("Ctrl+C stops it")
        if browser:
            webbrowser.open(address.url)

    return announce
