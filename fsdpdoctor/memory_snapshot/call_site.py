"""Which line of a stack is the user's, and which is torch's."""

from __future__ import annotations

import re

from fsdpdoctor.memory_snapshot.snapshot import Frame, Stack

_TORCH = re.compile(
    r"(?:^|/)torch/((?:distributed|optim|nn|autograd|utils|cuda|amp|func|jit|fx|"
    r"profiler|_\w+|library|storage|functional|serialization)(?:/.*)?\.py)$"
)
_TORCH_FILE = re.compile(r"(?:^|/)(?:site|dist)-packages/torch/(.*\.py)$")
_PYTHON = re.compile(r"/lib(?:64)?/python3\.?\d*/(?!(?:site|dist)-packages/)")
_NOTEBOOK = re.compile(r"/ipykernel_\d+/")
_WRAPPERS = frozenset({"wrapper", "inner", "inner_func", "decorate_context"})
"""Functions of installed libraries that only call what was meant."""


def of_torch(frame: Frame) -> str | None:
    """A frame's file within torch, such as `optim/adamw.py`; None where it is not
    torch's.
    """
    file = frame.file.replace("\\", "/")
    match = _TORCH_FILE.search(file) or _TORCH.search(file)
    return None if match is None else match[1]


def is_python(frame: Frame) -> bool:
    """Whether it is of Python code, not of C++ or of a compiler's output."""
    return frame.file.endswith(".py") or _NOTEBOOK.search(frame.file) is not None


def is_users(frame: Frame) -> bool:
    """Whether it is neither torch's nor of Python's library: the user's own, or of a
    library that the user chose.
    """
    file = frame.file.replace("\\", "/")
    if not is_python(frame) or file.startswith("<") or "torchinductor_" in file:
        return False
    if of_torch(frame) is not None or _PYTHON.search(file):
        return False
    return "-packages/" not in file or frame.function not in _WRAPPERS


def users_frame(stack: Stack) -> Frame | None:
    """The innermost frame that is the user's."""
    return next((frame for frame in stack if is_users(frame)), None)


def place(frame: Frame) -> str:
    """A frame's file, with the folder that it is in, and its line."""
    parts = frame.file.replace("\\", "/").split("/")
    return f"{'/'.join(parts[-2:])}:{frame.line}"
