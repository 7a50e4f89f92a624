"""Whose line runs, told from stacks that are put together here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typing_extensions

from fsdpdoctor.demo import train
from fsdpdoctor.recorder.host import source_paths
from fsdpdoctor.recorder.host.call_stack import CallStack
from fsdpdoctor.recorder.host.host_hooks import user_line
from fsdpdoctor.recorder.host.source_paths import (
    INSTALLED,
    LAUNCHER,
    PYTHON,
    TORCH,
    Paths,
    is_ours,
    module_of,
)
from fsdpdoctor.recorder.launch import run_script

LAUNCHED = "def begin(act):\n    return act()\n"
"""A function of the launcher, as the stack has it."""


def launched(act: Callable[[], Any]) -> Any:
    """Call it as the launcher calls a script: this test is how it was started."""
    names: dict[str, Any] = {}
    exec(compile(LAUNCHED, LAUNCHER, "exec"), names)
    return names["begin"](act)


def function_of_torch(ask: Callable[[], object]) -> Callable[[], Any]:
    """A function that calls another, and is torch's by the name of its file."""
    names: dict[str, Any] = {"ask": ask}
    exec(compile("def inside():\n    return ask()\n", torch.__file__, "exec"), names)
    inside: Callable[[], Any] = names["inside"]
    return inside


def place() -> str:
    """Of whom called the function of torch that called this."""
    return CallStack().site(sys._getframe(1)).place


def test_a_lambda_of_torchs_is_no_name() -> None:
    """Tensor parallelism puts its hooks into lambdas: what called them is said."""
    names: dict[str, Any] = {"ask": lambda: CallStack().site(sys._getframe(1)).via}
    code = "hook = lambda: ask()\ndef outside():\n    return hook()\n"
    exec(compile(code, torch.__file__, "exec"), names)

    assert names["outside"]() == "outside"


def test_the_launcher_is_the_script_s_own() -> None:
    """The name by which its frames are told is the file's."""
    assert run_script.__file__ == LAUNCHER


def test_how_a_script_was_started_is_no_place_of_it() -> None:
    """Without a frame of the script's there is no place: not a command line's."""
    inside = function_of_torch(place)
    assert launched(inside) == "?"
    assert inside().startswith("tests/recorder/host/test_call_stack.py:")


@pytest.mark.parametrize(
    ("name", "place"),
    [("wrapper", "train.py:2"), ("collate", "typing_extensions.py:2")],
)
def test_a_decorator_of_a_library_is_nobody_s_line(name: str, place: str) -> None:
    """Torch's deprecated functions are wrapped in another package's file."""
    calls = f"def {name}():\n    return sys._getframe(0)\n"
    names: dict[str, Any] = {"sys": sys}
    exec(compile(calls, typing_extensions.__file__, "exec"), names)
    names["called"] = names[name]
    mine = "def step():\n    return called()\n"
    exec(compile(mine, str(Path.cwd() / "train.py"), "exec"), names)

    assert CallStack().site(names["step"]()).place == place


def test_an_environment_in_the_working_folder_is_no_part_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The innermost folder that is known is what is left out of a name."""
    installed = f"{tmp_path}/.venv/lib/site-packages/"
    monkeypatch.setattr(source_paths, "INSTALLED", (installed,))
    monkeypatch.chdir(tmp_path)
    paths = Paths()
    assert paths.short(f"{installed}wandb/run.py") == "wandb/run.py"
    assert paths.short(f"{tmp_path}/train.py") == "train.py"


@pytest.mark.parametrize(
    ("path", "module"),
    [
        (f"{TORCH}utils/data/__init__.py", "torch.utils.data"),
        (f"{PYTHON}logging/handlers.py", "logging.handlers"),
        (f"{INSTALLED[0]}tqdm/std.py", "tqdm.std"),
        ("/home/me/train.py", ""),
    ],
)
def test_a_file_s_module_is_named_as_it_is_imported(path: str, module: str) -> None:
    """Of torch, of Python's library and of what is installed; a script has none."""
    assert module_of(path) == module


def test_the_user_s_line_ends_at_the_launcher_too() -> None:
    """The same for one line, of which the hooks ask."""
    inside = function_of_torch(user_line)
    assert launched(inside) == "?"
    assert inside().startswith("tests/recorder/host/test_call_stack.py:")


@pytest.mark.parametrize("of_python", [False, True])
def test_the_demonstration_is_a_script_like_anybody_s(of_python: bool) -> None:
    """Its lines are named; those of this package otherwise are not."""
    names: dict[str, Any] = {"sys": sys}
    source = "def inside():\n    return sys._getframe(0)\n"
    exec(compile(source, train.__file__, "exec"), names)
    site = CallStack(of_python=of_python).site(names["inside"]())

    assert site.place == "fsdpdoctor/demo/train.py:2"
    assert Paths().is_users(train.__file__)
    assert is_ours(run_script.__file__)
    assert not Paths().is_users(run_script.__file__)
