"""Where a script takes a setting."""

from __future__ import annotations

import pytest

from fsdpdoctor.planning.script_settings import (
    Handle,
    arguments_with,
    environment_with,
    handle_of,
)

ARGPARSE = """
parser.add_argument("-b", "--batch_size", type=int, default=4)
parser.add_argument("--seq-len", type=int)
"""
CLICK = '@click.option("--micro-batch", default=1)\ndef main(micro_batch): ...'
ENVIRONMENT = """
import os
from os import environ, getenv
BATCH = int(os.environ.get("BATCH", "2"))
LENGTH = int(environ["SEQ_LEN"])
DEPTH = getenv("DEPTH")
"""


@pytest.mark.parametrize(
    ("name", "source", "args", "expected"),
    [
        ("micro-batch", ARGPARSE, (), Handle(option="--batch_size")),
        ("sequence", ARGPARSE, (), Handle(option="--seq-len")),
        ("micro-batch", CLICK, (), Handle(option="--micro-batch")),
        ("micro-batch", ENVIRONMENT, (), Handle(variable="BATCH")),
        ("sequence", ENVIRONMENT, (), Handle(variable="SEQ_LEN")),
        ("depth", ENVIRONMENT, (), Handle(variable="DEPTH")),
        ("micro-batch", ARGPARSE, ("--x={micro-batch}",), Handle(placed=True)),
        ("micro-batch", "BATCH = 4", (), None),
        ("micro-batch", "settings.get('batch')", (), None),
        ("micro-batch", "no python {", (), None),
    ],
)
def test_a_setting_is_found_where_the_script_takes_it(
    name: str, source: str, args: tuple[str, ...], expected: Handle | None
) -> None:
    """In the arguments, by an option, by a variable, or nowhere that can be seen."""
    assert handle_of(name, source, args) == expected


def test_the_plainest_name_comes_first() -> None:
    """A script with both means its own micro-batch by the longer name."""
    source = 'p.add_argument("--batch")\np.add_argument("--micro-batch-size")'
    assert handle_of("micro-batch", source, ()) == Handle(option="--micro-batch-size")


def test_values_go_where_they_belong() -> None:
    """In place, at the end as an option, or into the environment."""
    handles = {
        "a": Handle(placed=True),
        "b": Handle(option="--bs"),
        "c": Handle(variable="LENGTH"),
    }
    values = {"a": "1", "b": "2", "c": "3", "world": "8"}
    assert arguments_with(["--x", "n={a}"], values, handles) == [
        "--x",
        "n=1",
        "--bs",
        "2",
    ]
    assert environment_with(values, handles) == {"LENGTH": "3"}
    assert [str(handle) for handle in handles.values()] == [
        "its arguments",
        "--bs",
        "$LENGTH",
    ]
