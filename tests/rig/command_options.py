"""Every option and argument of the commands, by the type that it takes."""

from __future__ import annotations

import click

from fsdpdoctor.cli import COMMANDS, main


def every_command() -> list[click.Command]:
    """The commands of `fsdpdoctor`, none of which has others below it."""
    context = click.Context(main)
    found = [main.get_command(context, name) for name in COMMANDS]
    assert found
    assert None not in found
    return [one for one in found if one is not None]


def of_type(commands: list[click.Command], kind: type, other_than: type) -> list[str]:
    """`command option` of each that takes this kind of word, and not that."""
    return [
        f"{command.name} {option.name}"
        for command in commands
        for option in command.params
        if isinstance(option.type, kind) and not isinstance(option.type, other_than)
    ]
