"""Code of ours, which dynamo passes over.

After a graph break a compiled function runs on in frames of its own, and dynamo looks
at each that these call: it would compile ours, and with them what they hold, check
their variables at every call, and give up where they have changed. A function's own
mark (`_torchdynamo_disable`) keeps dynamo only from tracing into it. What it traces
into all the same (hooks that torch calls) does nothing there, see `is_compiling`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

_PACKAGE = "fsdpdoctor."


def skip(code: CodeType) -> None:
    """Have it passed over, with all that is defined in it; where torch is not there,
    nor is dynamo.
    """
    marks = _marks()
    if marks is not None:
        for one in _with_inner(code):
            marks(one)


def skip_ours() -> None:
    """Have all functions of our modules passed over, as far as they are imported."""
    modules = [m for n, m in list(sys.modules.items()) if n.startswith(_PACKAGE)]
    for module in modules:
        for value in list(vars(module).values()):
            for function in _functions_of(value, module.__name__):
                skip(function.__code__)


def _marks() -> Callable[[CodeType], None] | None:
    """What marks a code object, of torch's own C; None where it is called otherwise."""
    compiled: Any = getattr(sys.modules.get("torch"), "_C", None)
    frames: Any = getattr(getattr(compiled, "_dynamo", None), "eval_frame", None)
    found: Callable[[CodeType], None] | None = getattr(frames, "skip_code", None)
    if found is not None or not hasattr(frames, "set_code_exec_strategy"):
        return found
    action = frames._FrameAction  # newer torch
    passed_over = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
    return lambda code: frames.set_code_exec_strategy(code, passed_over)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _functions_of(value: Any, module: str) -> Iterator[FunctionType]:
    """A function, or those of a class, of one module, decorated or not."""
    if isinstance(value, type):
        if value.__module__ == module:
            for inner in list(vars(value).values()):
                yield from _functions_of(inner, module)
        return
    if isinstance(value, property):
        yield from (f for f in (value.fget, value.fset) if isinstance(f, FunctionType))
        return
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, functools.cached_property):
        value = value.func
    while isinstance(value, FunctionType):
        if value.__module__ == module:
            yield value
        value = getattr(value, "__wrapped__", None)
