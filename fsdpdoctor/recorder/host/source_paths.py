"""Whose a source file is, and its name without what is the machine's alone."""

from __future__ import annotations

import contextlib
import os
import sysconfig
from pathlib import Path

import torch

TORCH = f"{Path(torch.__file__).absolute().parent}{os.sep}"
OURS = f"{Path(__file__).absolute().parents[2]}{os.sep}"
LAUNCHER = f"{OURS}recorder{os.sep}launch{os.sep}run_script.py"
"""What calls the script: callers of this are how it was started."""
_BESIDE = f"{Path(__file__).absolute().parents[3]}{os.sep}"
_DEMO = f"{OURS}demo{os.sep}"  # a script like anybody's
PYTHON = f"{sysconfig.get_path('stdlib')}{os.sep}"
INSTALLED = tuple(
    f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("purelib", "platlib")
)


_ROOTS = (f"{Path(TORCH).parent}{os.sep}", *INSTALLED, PYTHON)


def is_ours(path: str) -> bool:
    """Whether a file is of this package, its demonstration's script apart."""
    return path.startswith(OURS) and not path.startswith(_DEMO)


def module_of(path: str) -> str:
    """The module of an installed package's file, or of Python's library, as it is
    imported; empty for a file of the user's own.
    """
    for root in _ROOTS:
        if path.startswith(root):
            name = path.removeprefix(root).removesuffix(".py")
            return name.removesuffix(f"{os.sep}__init__").replace(os.sep, ".")
    return ""


class Paths:
    """Says whose a file is, and shortens its name."""

    def __init__(self) -> None:
        known = [*INSTALLED, PYTHON, _BESIDE]
        with contextlib.suppress(OSError):  # the folder is gone
            known.append(f"{Path.cwd()}{os.sep}")
        # An environment may lie in the working folder: the innermost folder counts.
        self._known = sorted(set(known), key=len, reverse=True)

    def is_users(self, path: str) -> bool:
        """Neither torch's, nor Python's, nor ours."""
        if path.startswith(("<", TORCH)) or "/torchinductor_" in path:
            return path == "<stdin>"
        if is_ours(path):
            return False
        return path.startswith(INSTALLED) or not path.startswith(PYTHON)

    def short(self, path: str) -> str:
        """Without what is the machine's alone, where it is known."""
        for prefix in self._known:
            if path.startswith(prefix):
                return path.removeprefix(prefix)
        return path
