"""Paths on the command line."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.cli.option_types.given_path import GivenPath


def test_a_path_is_a_path(tmp_path: Path) -> None:
    """Its kind is asked as click's own does."""
    assert GivenPath().convert("runs/7", None, None) == Path("runs/7")
    with pytest.raises(click.BadParameter):
        GivenPath(file_okay=False, exists=True).convert(__file__, None, None)


@pytest.mark.parametrize("command", ["analyze", "hang", "compare", "export", "whatif"])
def test_an_empty_word_is_none(command: str) -> None:
    """It is not the current folder: who has left a variable unset is told so."""
    result = CliRunner().invoke(main, [command, ""])

    assert result.exit_code == 2
    assert "an empty name: expected a path." in result.output


def _plain(command: click.Command, name: str) -> list[str]:
    """The options and arguments, of a command and of those below it, that are other
    paths.
    """
    context = click.Context(command)
    if isinstance(command, click.Group):
        below = [
            (sub, one)
            for sub in command.list_commands(context)
            if (one := command.get_command(context, sub)) is not None
        ]
        assert below
        return [found for sub, one in below for found in _plain(one, f"{name} {sub}")]
    return [
        f"{name} {option.name}"
        for option in command.params
        if isinstance(option.type, click.Path)
        and not isinstance(option.type, GivenPath)
    ]


def test_every_path_is_one() -> None:
    """No command takes another kind of path."""
    assert _plain(main, "fsdpdoctor") == []
    assert _plain(_OTHER, "other") == ["other out"]


_OTHER = click.Command("other", params=[click.Option(["--out"], type=click.Path())])
