"""Replaces functions of other people's classes, and puts them back.

[Note: The border] Our code runs inside somebody's training step. An error of
ours is caught where we enter, said once, and ends the recording; an error of
theirs passes through untouched. `ErrorBorder` is that border. What we do in their
stead inside it (a wait that they would make next) goes through `ErrorBorder.user_call`.

[Note: Unseen frames] A warning says in whose line it was caused by counting
frames, and ours must not count: the line shown, and with it which warnings are
repetitions, would be others than without us. CPython skips the frames of the
import system, which it knows by two words in the file's name; our wrappers carry
both. Their own file and line stay readable in tracebacks.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from types import CellType, FunctionType
from typing import Any, TypeVar, cast

Function = Callable[..., Any]
Wrap = Callable[[Function], Function]
Some = TypeVar("Some")
AFunction = TypeVar("AFunction", bound=Function)


def unseen(function: AFunction) -> AFunction:
    """Hide a wrapper's frames from warnings; see [Note: Unseen frames]."""
    wrapper = cast(FunctionType, function)
    code = wrapper.__code__
    name = f"<fsdpdoctor {Path(code.co_filename).name}, as importlib._bootstrap>"
    wrapper.__code__ = code.replace(co_filename=name)
    return function


class ErrorBorder:
    """Counts what the recorder costs, and stops it at its first own error."""

    def __init__(self, stop: Callable[[str], None]) -> None:
        self.cost_ns = 0
        self._stop = stop
        self._theirs: Exception | None = None

    def run(self, call: Callable[..., Some], *args: Any) -> Some | None:
        """Run our own code between two calls of theirs; None where it failed."""
        entered = perf_counter_ns()
        try:
            return call(*args)
        except Exception as error:
            self.fail(error)
            return None
        finally:
            self.cost_ns += perf_counter_ns() - entered

    def user_call(self, call: Function, *args: Any) -> None:
        """Do inside our border what is theirs: its errors pass, its time is no
        cost of ours.
        """
        entered = perf_counter_ns()
        try:
            call(*args)
        except Exception as error:
            self._theirs = error
            raise
        finally:
            self.cost_ns -= perf_counter_ns() - entered

    def fail(self, error: Exception) -> None:
        """Say it once and end the recording; training goes on.

        An error of theirs is raised again instead, and ends nothing of ours.
        """
        theirs, self._theirs = self._theirs, None
        if error is theirs:
            raise error
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
        self._cells: list[tuple[CellType, Function]] = []

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace `owner.name` until `undo`."""
        own = vars(owner)
        self._saved.append((owner, name, own.get(name), name in own))
        setattr(owner, name, replacement)

    def put_inside(self, owner: Any, name: str, wrap: Wrap) -> None:
        """Wrap what a decorated function calls, so that whoever has imported it by
        name is heard, too; a function without a decorator is replaced in its owner.
        """
        function = getattr(owner, name)
        for cell in getattr(function, "__closure__", None) or ():
            inner = cell.cell_contents
            # Its decorator has given the function the name of what it calls.
            if getattr(inner, "__name__", None) == function.__name__:
                self._cells.append((cell, inner))
                cell.cell_contents = wrap(inner)
                return
        self.put(owner, name, wrap(function))

    def undo(self) -> None:
        """Put everything back, newest first."""
        while self._cells:
            cell, inner = self._cells.pop()
            cell.cell_contents = inner
        while self._saved:
            owner, name, original, was_own = self._saved.pop()
            if was_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)


def bracket(
    original: Function, guard: ErrorBorder, before: Function, after: Function
) -> Function:
    """`original` with our code around it.

    `before` gets the call's arguments; `after` gets what `before` returned and
    the exception that ended the call, None for none.
    """

    @unseen
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
            guard.run(after, token, error)
            raise
        guard.run(after, token, None)
        return result

    # FSDP2 keeps its hooks away from dynamo; ours go the same way.
    bracketed._torchdynamo_disable = True  # type: ignore[attr-defined]
    return bracketed
