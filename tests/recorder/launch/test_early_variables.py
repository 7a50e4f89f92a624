"""What a script sets before it imports torch, and that import."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsdpdoctor.recorder.launch.early_variables import once_imported, sets_variables

NAME = "fsdpdoctor_imported_late"


@pytest.mark.parametrize(
    ("source", "sets"),
    [
        ("import os\nos.environ['A'] = '1'\nimport torch", True),
        (b"from os import environ\nenviron['A'] = '1'\nimport torch", True),
        ("import os\nos.environ.setdefault('A', '1')\nfrom torch import nn", True),
        ("import os\nif 1:\n  os.environ.update(A='1')\nimport torch", True),
        ("import os\nos.putenv('A', '1')", True),
        ("import os\ndef main():\n  os.environ['A'] = '1'\n  import torch", True),
        ("import os, torch\nos.environ['A'] = '1'", False),
        ("import torch.nn as nn, os\nos.environ['A'] = '1'", False),
        ("import os\nfrom torch import nn\nos.environ['A'] = '1'", False),
        ("import os\nrank = os.environ['RANK']\nimport torch", False),
        ("import os\nrank = os.environ.get('RANK')\nknown.update(a=1)", False),
        ("known['A'] = '1'  # as environ", False),
        ("environ(", False),
        ("x = 'environ\\d'", False),
    ],
)
def test_a_script_that_sets_variables_first(source: str | bytes, sets: bool) -> None:
    """Told by its text; that it is read says nothing to anybody."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sets_variables(source) is sets


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that can be imported."""
    path = tmp_path / f"{NAME}.py"
    path.write_text("seen = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop(NAME, None)


def test_acts_within_the_first_import_of_a_module(module: Path) -> None:
    """Once, when it is whole; nothing of it is left, and to look for it is not to
    import it.
    """
    before, acted = list(sys.meta_path), list[bool]()

    def act() -> None:
        acted.append(hasattr(sys.modules[NAME], "seen"))

    with once_imported(NAME, act):
        assert importlib.util.find_spec(NAME) is not None
        assert acted == []
        imported = importlib.import_module(NAME)
        assert acted == [True]
        importlib.import_module(NAME)
        assert sys.meta_path == before

    assert acted == [True]
    assert imported.__spec__ is not None
    assert "exec_module" not in vars(imported.__spec__.loader)
    assert imported.__file__ == str(module)


def test_a_module_that_is_not_imported_or_fails_is_not_acted_on(module: Path) -> None:
    """Its own error passes."""
    before, acted = list(sys.meta_path), list[bool]()
    with once_imported(NAME, lambda: acted.append(True)):
        assert importlib.util.find_spec("no_such_module") is None
    assert sys.meta_path == before
    module.write_text("1 / 0")
    importlib.invalidate_caches()
    with (
        once_imported(NAME, lambda: acted.append(True)),
        pytest.raises(ZeroDivisionError),
    ):
        importlib.import_module(NAME)
    assert (acted, sys.meta_path) == ([], before)
