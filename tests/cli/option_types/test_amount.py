"""Numbers on the command line: finite, and as large as they have to be."""

from __future__ import annotations

import click
import pytest

from fsdpdoctor.cli import main
from fsdpdoctor.cli.option_types.amount import Amount


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "0", "-1", "many"])
def test_what_is_no_amount(text: str) -> None:
    """It is refused in click's words."""
    with pytest.raises(click.BadParameter):
        Amount().convert(text, None, None)


def test_an_amount_is_itself() -> None:
    """More than zero, or at least what is said."""
    assert Amount().convert("1e-9", None, None) == 1e-9
    assert Amount(min=0).convert("0", None, None) == 0
    assert Amount(min=0.01).convert("0.01", None, None) == 0.01
    with pytest.raises(click.BadParameter):
        Amount(min=0.01).convert("0.009", None, None)


def _floats(command: click.Command, name: str) -> list[str]:
    """The options, of a command and of those below it, that are other floats."""
    context = click.Context(command)
    if isinstance(command, click.Group):
        below = {
            sub: command.get_command(context, sub)
            for sub in command.list_commands(context)
        }
        assert below
        return [
            found
            for sub, one in below.items()
            if one is not None
            for found in _floats(one, f"{name} {sub}")
        ]
    return [
        f"{name} {option.name}"
        for option in command.params
        if isinstance(option.type, click.types.FloatParamType)
        and not isinstance(option.type, Amount)
    ]


def test_every_option_is_one() -> None:
    """No command takes another kind of float."""
    assert _floats(main, "fsdpdoctor") == []
    assert _floats(_OTHER, "other") == ["other price"]


_OTHER = click.Command("other", params=[click.Option(["--price"], type=float)])
