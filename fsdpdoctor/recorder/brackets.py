"""Our code around a function of somebody else's: before it, and after it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from fsdpdoctor.recorder.patching import (
    ErrorBorder,
    Function,
    Wrap,
    hide_frames,
    unseen,
)


@functools.cache
def compiling_check() -> Callable[[], bool]:
    """Torch's own question, of before a script could take torch's modules away."""
    from torch.compiler import is_compiling

    return is_compiling


PASS_BY = object()
"""What the first half of a bracket returns where the second has nothing to say."""


def bracketing(
    guard: ErrorBorder, before: Function, after: Function | None = None
) -> Wrap:
    """What makes the bracket around a function that is not known yet."""
    return lambda original: bracket(original, guard, before, after)


def bracket(
    original: Function,
    guard: ErrorBorder,
    before: Function,
    after: Function | None = None,
) -> Function:
    """`original` with our code around it.

    `before` gets the call's arguments; `after` gets what `before` returned and
    the exception that ended the call, None for none; it is not called where that is
    `PASS_BY`. Within a graph of dynamo's there is `original` alone: with
    `fullgraph=True` a call that breaks it is an error.
    """
    # Some twenty of these run for each unit of a recorded step: they call little.
    is_compiling = compiling_check()
    if after is None:
        return _in_front(original, guard, before)

    @unseen
    @functools.wraps(original)
    def bracketed(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        entered = perf_counter_ns()
        try:
            token = before(*args, **kwargs)
        except Exception as error:
            guard.fail(error)
            token = PASS_BY  # not here: theirs would be said to be of handling ours
        guard.cost_ns += perf_counter_ns() - entered
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            if token is not PASS_BY:
                guard.run(after, token, error)
            hide_frames(error)
            raise
        if token is PASS_BY or guard.failed:
            return result
        entered = perf_counter_ns()
        try:
            after(token, None)
        except Exception as error:
            guard.fail(error)
        guard.cost_ns += perf_counter_ns() - entered
        return result

    return bracketed


def _in_front(original: Function, guard: ErrorBorder, before: Function) -> Function:
    is_compiling = compiling_check()

    @unseen
    @functools.wraps(original)
    def bracketed(*args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            entered = perf_counter_ns()
            try:
                before(*args, **kwargs)
            except Exception as error:
                guard.fail(error)
            guard.cost_ns += perf_counter_ns() - entered
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            hide_frames(error)
            raise

    return bracketed
