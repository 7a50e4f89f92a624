"""`fsdpdoctor explain`: what a finding means."""

from __future__ import annotations

import click

from fsdpdoctor.detectors import ALL
from fsdpdoctor.errors import UsageError


@click.command(name="explain")
@click.argument("code", required=False)
def command(code: str | None) -> None:
    r"""Explain a finding by its code or name. Without one, list them all.

    \b
    fsdpdoctor explain FD101
    fsdpdoctor explain exposed-all-gather
    """
    if code is None:
        for detector in ALL:
            click.echo(f"{detector.code}  {detector.name}")
        return
    for detector in ALL:
        if code.lower() in (detector.code.lower(), detector.name, *detector.also):
            click.echo(f"{detector.code} {detector.name}\n\n{detector.page}")
            return
    known = ", ".join(detector.code for detector in ALL)
    raise UsageError(f"there is no finding {code}; there are {known}")
