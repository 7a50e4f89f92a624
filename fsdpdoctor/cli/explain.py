"""`fsdpdoctor explain`: what a finding means, and what a word does."""

from __future__ import annotations

import click

from fsdpdoctor.detectors import ALL
from fsdpdoctor.errors import UsageError
from fsdpdoctor.renderers.reading.glossary import TERMS, term_of


@click.command(name="explain")
@click.argument("code", required=False)
def command(code: str | None) -> None:
    r"""Explain a finding, by its code or name, or a word. Without one, list them all.

    \b
    fsdpdoctor explain FD101
    fsdpdoctor explain exposed-all-gather
    fsdpdoctor explain straggler
    """
    if code is None:
        for detector in ALL:
            click.echo(f"{detector.code}  {detector.name}")
        click.echo(f"\nWords: {', '.join(term.name for term in TERMS)}")
        return
    for detector in ALL:
        if code.lower() in (detector.code.lower(), detector.name, *detector.also):
            click.echo(f"{detector.code} {detector.name}\n\n{detector.page}")
            return
    term = term_of(code)
    if term is not None:
        click.echo(f"{term.name}: {term.meaning}")
        return
    known = ", ".join(detector.code for detector in ALL)
    raise UsageError(f"there is no finding {code}; there are {known}")
