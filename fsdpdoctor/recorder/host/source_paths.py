"""Whose a source file is, and its name without what is the machine's alone."""

from __future__ import annotations

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


def is_ours(path: str) -> bool:
    """Whether a file is of this package, its demonstration's script apart."""
    return path.startswith(OURS) and not path.startswith(_DEMO)


class Paths:
    """Says whose a file is, and shortens its name."""

    def __init__(self) -> None:
        try:
            self._here = f"{Path.cwd()}{os.sep}"
        except OSError:
            self._here = "\0"  # the folder is gone: paths stay whole

    def is_users(self, path: str) -> bool:
        """Neither torch's, nor Python's, nor ours."""
        if path.startswith(("<", TORCH)) or "/torchinductor_" in path:
            return path == "<stdin>"
        if is_ours(path):
            return False
        return path.startswith(INSTALLED) or not path.startswith(PYTHON)

    def short(self, path: str) -> str:
        """Without what is the machine's alone, where it is known."""
        for prefix in (self._here, *INSTALLED, PYTHON, _BESIDE):
            if path.startswith(prefix):
                return path.removeprefix(prefix)
        return path
