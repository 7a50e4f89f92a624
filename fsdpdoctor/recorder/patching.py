"""Replaces functions of other people's classes, and puts them back.

[Note: The border] Our code runs inside somebody's training step. An error of
ours is caught where we enter, said once, and ends the recording; an error of
theirs passes through untouched. `Guard` is that border.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

Function = Callable[..., Any]


class Guard:
    """Counts what the recorder costs, and stops it at its first own error."""

    def __init__(self, stop: Callable[[str], None]) -> None:
        self.cost_ns = 0
        self._stop = stop

    def fail(self, error: Exception) -> None:
        """Say it once and end the recording; training goes on."""
        where = "?"
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            where = f"{code.co_name}:{trace.tb_lineno}"
            trace = trace.tb_next
        message = f"{type(error).__name__} in {where}: {error}"
        self._stop(f"detached: {message}")
        warnings.warn(
            f"fsdpdoctor stopped recording, training goes on: {message}",
            RuntimeWarning,
            stacklevel=3,
        )

    def take_cost(self) -> int:
        """The nanoseconds spent since the last call."""
        cost, self.cost_ns = self.cost_ns, 0
        return cost


class Patches:
    """Functions replaced under their own names, as a set that can be undone."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any, bool]] = []

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace `owner.name` until `undo`."""
        own = vars(owner)
        self._saved.append((owner, name, own.get(name), name in own))
        setattr(owner, name, replacement)

    def undo(self) -> None:
        """Put everything back, newest first."""
        while self._saved:
            owner, name, original, was_own = self._saved.pop()
            if was_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)


def bracket(
    original: Function, guard: Guard, before: Function, after: Function
) -> Function:
    """`original` with our code around it.

    `before` gets the call's arguments; `after` gets what `before` returned and
    the exception that ended the call, None for none.
    """

    @functools.wraps(original)
    def bracketed(*args: Any, **kwargs: Any) -> Any:
        entered = perf_counter_ns()
        try:
            token = before(*args, **kwargs)
        except Exception as error:
            guard.fail(error)
            return original(*args, **kwargs)
        guard.cost_ns += perf_counter_ns() - entered
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            leave(guard, after, token, error)
            raise
        leave(guard, after, token, None)
        return result

    # FSDP2 keeps its hooks away from dynamo; ours go the same way.
    bracketed._torchdynamo_disable = True  # type: ignore[attr-defined]
    return bracketed


def leave(
    guard: Guard, after: Function, token: Any, error: BaseException | None
) -> None:
    """Run our code at the end of a bracketed call."""
    entered = perf_counter_ns()
    try:
        after(token, error)
    except Exception as own:
        guard.fail(own)
    guard.cost_ns += perf_counter_ns() - entered
