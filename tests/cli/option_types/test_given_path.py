"""Paths on the command line."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.cli.option_types.given_path import GivenPath
from tests.rig.command_options import every_command, of_type


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


def test_every_path_is_one() -> None:
    """No command takes another kind of path."""
    other = click.Command("other", params=[click.Option(["--out"], type=click.Path())])

    assert of_type(every_command(), click.Path, GivenPath) == []
    assert of_type([other], click.Path, GivenPath) == ["other out"]
