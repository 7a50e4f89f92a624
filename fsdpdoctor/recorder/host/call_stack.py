"""Whose line runs: the innermost frame outside torch and this package, and what that
line called.

It is asked in the middle of somebody's step, so what a line of code is called is
worked out once.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from fsdpdoctor.recorder.host.source_paths import (
    INSTALLED,
    LAUNCHER,
    PYTHON,
    TORCH,
    Paths,
    is_ours,
)
from fsdpdoctor.recorder.host.thread_stacks import Code, StackFrame, ThreadStacks

_DECORATION = frozenset(
    {
        "wrapper",
        "inner",
        "decorate_context",
        "_fn",
        "_call_impl",
        "_wrapped_call_impl",
        "__call__",
        "bracketed",
        "inner_func",
        "profile_hook_step",
    }
)
"""Functions that only call what was meant."""

_WRAPPERS = frozenset({"wrapper", "inner", "inner_func", "decorate_context"})
"""Of an installed library these are a decorator's: nobody's line, whoever is called."""

_MOST_FRAMES = 200


class CallSite(NamedTuple):
    """A line of the user's code, and what is running there."""

    place: str  # "train.py:43", "?" where no frame is the user's
    via: str  # the function of torch, or of Python's library, that it called
    functions: tuple[str, ...]  # the user's, innermost first


class CallStack:
    """Tells call sites, and remembers what it has told."""

    def __init__(self, *, of_python: bool = False) -> None:
        # Whether frames of Python's own library count as the user's.
        skipped = (TORCH,) if of_python else (TORCH, PYTHON)
        self._skipped = skipped
        self._paths = Paths()
        self._foreign: dict[Code, bool] = {}
        self._places: dict[tuple[Code, int | None], str] = {}

    def site(self, frame: StackFrame | None, functions: int = 8) -> CallSite:
        """The call site of a frame, with the names of so many functions around it."""
        via = ""
        count = 0
        while frame is not None and count < _MOST_FRAMES:
            code = frame.f_code
            if code.co_filename == LAUNCHER:
                break
            if not self._is_foreign(code):
                return CallSite(self._place(frame), via, _names(frame, functions))
            if not _is_decoration(code.co_name) and not _is_ours(code):
                via = _public(code.co_name)
            frame = frame.f_back
            count += 1
        return CallSite("?", via, ())

    def _is_foreign(self, code: Code) -> bool:
        known = self._foreign.get(code)
        if known is None:
            known = _is_wrapper(code) or self._foreign_path(code.co_filename)
            self._foreign[code] = known
        return known

    def _foreign_path(self, path: str) -> bool:
        if path.startswith("<") or f"{os.sep}torchinductor_" in path:
            return True
        if is_ours(path):
            return True
        return path.startswith(self._skipped) and (
            path.startswith(TORCH) or not path.startswith(INSTALLED)
        )

    def _place(self, frame: StackFrame) -> str:
        key = frame.f_code, frame.f_lineno
        known = self._places.get(key)
        if known is None:
            path = self._paths.short(frame.f_code.co_filename)
            known = self._places[key] = f"{path}:{frame.f_lineno}"
        return known


def _is_decoration(name: str) -> bool:
    """Also what has no name that a user could look up: a lambda."""
    return name in _DECORATION or name.endswith("_wrapper") or name.startswith("<")


def _is_wrapper(code: Code) -> bool:
    named = code.co_name in _WRAPPERS or code.co_name.endswith("_wrapper")
    return named and code.co_filename.startswith(INSTALLED)


def _public(name: str) -> str:
    """A function's name as a user calls it: `_get_total_norm` is an alias' own."""
    return name if name.startswith("__") else name.lstrip("_") or name


def _is_ours(code: Code) -> bool:
    return code.co_filename.startswith("<") or is_ours(code.co_filename)


def _names(frame: StackFrame, most: int) -> tuple[str, ...]:
    found: list[str] = []
    at: StackFrame | None = frame
    while at is not None and len(found) < most:
        found.append(at.f_code.co_name)
        at = at.f_back
    return tuple(found)


class WaitingThread:
    """Where the training thread waits while its backward runs on another thread, as a
    device's does: at one line for all of a micro-batch, which is asked for once.
    """

    def __init__(self, stack: CallStack) -> None:
        self._stack = stack
        self._stacks = ThreadStacks()
        self._of: object = None
        self._site = CallSite("?", "", ())

    def site(self, thread: int, of: object) -> CallSite:
        """Its call site; the same for equal `of`, which is None where it may move."""
        if of is None or of != self._of:
            self._site = self._stack.site(self._stacks.of(thread))
            self._of = of
        return self._site

    def close(self) -> None:
        """It is asked no more."""
        self._stacks.close()
