"""`--autotune` may stand alone; what a script is given is its own."""

from __future__ import annotations

import click
import pytest

from fsdpdoctor.cli.run import command
from fsdpdoctor.cli.run_options import Autotune, refuse_restart
from fsdpdoctor.errors import UsageError


@pytest.mark.parametrize(
    ("line", "minutes", "script", "args"),
    [
        ("--autotune train.py", 0.0, "train.py", ()),
        ("--autotune=5 train.py --lr 1", 5.0, "train.py", ("--lr", "1")),
        ("--out o --autotune train.py --autotune", 0.0, "train.py", ("--autotune",)),
        ("--autotune --every 1 -- train.py", 0.0, "train.py", ()),
        ("--live --autotune --out x t.py -m", 0.0, "t.py", ("-m",)),
        ("train.py --autotune", None, "train.py", ("--autotune",)),
        ("--out --autotune train.py", None, "train.py", ()),
    ],
)
def test_autotune_may_stand_alone(
    line: str, minutes: float | None, script: str, args: tuple[str, ...]
) -> None:
    """What follows it is the script; a number needs the equals sign."""
    with command.make_context("run", line.split()) as context:
        said = context.params

    asked = None if minutes is None else Autotune(minutes=minutes)
    assert (said["autotune"], said["script"], said["args"]) == (asked, script, args)


def test_restart_is_for_who_starts_ranks() -> None:
    """A rank would start a job within the job."""
    with command.make_context("run", ["--autotune=restart", "t.py"]) as context:
        asked = context.params["autotune"]

    assert asked == Autotune(restart=True)
    refuse_restart(Autotune(minutes=5.0))
    with pytest.raises(UsageError, match="give --nproc-per-node"):
        refuse_restart(asked)


def test_less_than_no_time_is_refused() -> None:
    """A negative number of minutes."""
    with pytest.raises(click.BadParameter):
        command.make_context("run", ["--autotune=-1", "train.py"])
