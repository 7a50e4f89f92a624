"""Commands that try a change, held against `whatif`'s own reading of them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.cli.whatif import command
from fsdpdoctor_dashboard.pages.try_command import try_command


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"forward_prefetch": 2}, ["--forward-prefetch", "2"]),
        ({"forward_prefetch": 0}, ["--forward-prefetch", "0"]),
        ({"reshard_after_forward": {"*": False}}, ["--reshard", "false"]),
        ({"reshard_after_forward": {"a.b": 2}}, ["--reshard", "a.b=2"]),
        ({"split_root": True, "merge": 3}, ["--split-root", "--merge", "3"]),
        ({"unshard_async_op": False}, ["--no-async"]),
    ],
)
def test_options_say_the_change(change: dict[str, object], options: list[str]) -> None:
    """Each field as `whatif` takes it, which accepts the line; then the script."""
    made = try_command(Path("my run"), change, ["train.py", "--lr", "1e-3"])

    assert made is not None
    first, second = made.splitlines()
    words = shlex.split(first)
    assert words == ["fsdpdoctor", "whatif", "my run", *options, "--save", "plan.json"]
    assert command.make_parser(command.make_context("whatif", ["x"])).parse_args(
        words[2:]
    )
    assert second.startswith("fsdpdoctor run --apply plan.json train.py --lr 1e-3")


@pytest.mark.parametrize("change", [{}, {"replicate": 2}, {"world_size": 16}])
def test_what_no_option_says_is_no_command(change: dict[str, object]) -> None:
    """A line that did something else would be worse than none."""
    assert try_command(Path("run"), change, []) is None
