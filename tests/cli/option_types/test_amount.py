"""Numbers on the command line: finite, and as large as they have to be."""

from __future__ import annotations

import click
import pytest

from fsdpdoctor.cli.option_types.amount import Amount
from tests.rig.command_options import every_command, of_type


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


def test_every_option_is_one() -> None:
    """No command takes another kind of float."""
    other = click.Command("other", params=[click.Option(["--price"], type=float)])

    assert of_type(every_command(), FLOATS, Amount) == []
    assert of_type([other], FLOATS, Amount) == ["other price"]


FLOATS = click.types.FloatParamType
