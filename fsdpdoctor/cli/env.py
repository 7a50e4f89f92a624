"""`fsdpdoctor env`: what can be recorded here, what cannot, and why."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from fsdpdoctor import recorder
from fsdpdoctor.cli.output import never_fail_to_encode
from fsdpdoctor.errors import MissingDependencyError
from fsdpdoctor.version import __version__

ENV_SCHEMA_VERSION = 1
"""Of the JSON."""


@click.command(name="env")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    r"""Print what can be recorded in this environment, what cannot, and why.

    The versions are told and not judged by: each name of torch that the recorder uses
    is looked for. Reading records and traces needs none of it.

    \b
    fsdpdoctor env
    """
    never_fail_to_encode()
    try:
        recorder.require_torch()
    except MissingDependencyError as error:
        _print_without_torch(str(error), as_json)
        return
    from fsdpdoctor.recorder.abilities import surroundings

    here = surroundings()
    if as_json:
        said = {"schema_version": ENV_SCHEMA_VERSION, "fsdpdoctor": __version__}
        said |= {"facts": dict(here.facts)}
        said |= {"recorded": [asdict(ability) for ability in here.abilities]}
        click.echo(json.dumps(said, indent=1))
        return
    width = max(len(name) for name, _ in here.facts)
    click.echo(f"{'fsdpdoctor':{width}}  {__version__}")
    for name, value in here.facts:
        click.echo(f"{name:{width}}  {value}")
    click.echo("\nrecorded here:")
    for ability in here.abilities:
        why = f": {ability.why}" if ability.why else ""
        click.echo(f"  {'yes' if ability.can else 'no':3}  {ability.what}{why}")


def _print_without_torch(why: str, as_json: bool) -> None:
    if as_json:
        said = {"schema_version": ENV_SCHEMA_VERSION, "fsdpdoctor": __version__}
        click.echo(json.dumps({**said, "facts": {"torch": None}, "recorded": []}))
        return
    click.echo(f"fsdpdoctor  {__version__}\n\nrecorded here: nothing: {why}")
