"""Replaces functions of other people's classes, and puts them back.

[Note: The border] Our code runs inside somebody's training step. An error of
ours is caught where we enter, said once, and ends the recording; an error of
theirs passes through untouched. `ErrorBorder` is that border. What we do in their
stead inside it (a wait that they would make next) goes through `ErrorBorder.user_call`.

[Note: Unseen frames] A warning says in whose line it was caused by counting
frames, and ours must not count: the line shown, and with it which warnings are
repetitions, would be others than without us. CPython skips the frames of the
import system, which it knows by two words in the file's name; our wrappers carry
both. Their own file and line stay readable in a stack that is dumped. In a traceback
of theirs they are not: a script may print it, or look through it, so that an error
which leaves a wrapper leaves our frames behind (`hide_frames`).

[Note: Layers] Others patch what we patch, before us and after us. A layer of ours
is put around whatever is there at that moment, and is taken away only while it is
still on top. One that somebody has wrapped, or has kept to put it back later, stays
where it is and becomes a plain call of what it wraps, for good; where such a layer
comes to lie on top again, the next one of ours takes its place.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from types import (
    CellType,
    FunctionType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any, TypeVar, cast

from fsdpdoctor.recorder import border, dynamo_skips

Function = Callable[..., Any]
Wrap = Callable[[Any], Any]
"""Makes what goes around a function, or a stand-in for something else."""
Some = TypeVar("Some")
AFunction = TypeVar("AFunction", bound=Function)
_UNSEEN = "<fsdpdoctor "


def unasked() -> Any:
    """In it, what we ask of a tensor is asked of no mode of the script's, and of no
    class: they may count, or refuse.
    """
    import torch  # not above: `fsdpdoctor run` can say that there is none

    return torch._C.DisableTorchFunction()


def unseen(function: AFunction) -> AFunction:
    """Hide a wrapper's frames from warnings; see [Note: Unseen frames]."""
    wrapper = cast(FunctionType, function)
    code = wrapper.__code__
    name = f"{_UNSEEN}{Path(code.co_filename).name}, as importlib._bootstrap>"
    wrapper.__code__ = code.replace(co_filename=name)
    dynamo_skips.skip(wrapper.__code__)
    return function


def hide_frames(error: BaseException) -> None:
    """Take the frames of wrappers out of the traceback of an error of theirs. Who calls
    it raises on with a bare `raise`, which adds none.
    """
    first = last = None
    there = error.__traceback__
    while there is not None:
        following = there.tb_next
        if not there.tb_frame.f_code.co_filename.startswith(_UNSEEN):
            if last is None:
                first = there
            else:
                last.tb_next = there
            last = there
        there = following
    if last is not None:
        last.tb_next = None
    BaseException.with_traceback(error, first)


class ErrorBorder:
    """Counts what the recorder costs, and stops it at its first own error."""

    def __init__(self, stop: Callable[[str], None], what: str = "recording") -> None:
        self.cost_ns = 0
        self._what = what
        self.stop_failed = False
        self._stop = stop
        self.failed = False
        self._theirs: Exception | None = None

    def run(self, call: Callable[..., Some], *args: Any) -> Some | None:
        """Run our own code between two calls of theirs; None where it failed, and
        after it has: the second half of a hook puts nothing back in place.
        """
        if self.failed:
            return None
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
        if error is theirs or border.of_signal_handler(error):
            raise error
        if self.failed:
            return
        self.failed = True
        message = border.describe(error)
        try:
            self._stop(f"detached: {message}")
        except Exception:  # what could be undone is undone
            self.stop_failed = True
        border.say(f"fsdpdoctor stopped {self._what}, training goes on: {message}")

    def take_cost(self) -> int:
        """The nanoseconds spent since the last call."""
        cost, self.cost_ns = self.cost_ns, 0
        return cost


def _passing(
    *args: Any, fsdpdoctor_original: Function, fsdpdoctor_there: Any, **kwargs: Any
) -> Any:
    return fsdpdoctor_original(*args, **kwargs)


def is_compiled(layer: Any) -> bool:
    """Whether it is a layer of ours that is in C."""
    return type(layer).__module__ == "fsdpdoctor._tape"


class StandIn:
    """An object of ours in the place of another, that can step aside."""

    def fsdpdoctor_pass(self) -> None:
        """Be nothing but a way to the other, from here on."""
        raise NotImplementedError

    def fsdpdoctor_beneath(self) -> Any:
        """The other, once this one has stepped aside; else itself."""
        raise NotImplementedError


def _named_as(layer: Any, original: Any) -> None:
    """A layer says of itself what it wraps, as a decorator does: its name, its place,
    and by `inspect` its signature and source. Tools ask, before they wrap it in turn.
    """
    function = layer.__func__ if isinstance(layer, staticmethod) else layer
    ours = isinstance(function, FunctionType) or is_compiled(function)
    if ours and not hasattr(function, "__wrapped__"):
        functools.update_wrapper(function, original)


def _step_aside(layer: Any, original: Any, there: Any) -> None:
    """Make a layer, wherever it is held, a call of what it wraps."""
    if isinstance(layer, StandIn):
        layer.fsdpdoctor_pass()
    function: Any = layer.__func__ if isinstance(layer, staticmethod) else layer
    if is_compiled(function):  # first: it says of itself that it is a function
        function.step_aside(there)
        return
    if not isinstance(function, FunctionType):
        return
    # A function's code can be replaced by one with as many free variables. So a
    # layer in use pays nothing for this.
    code = function.__code__
    function.__kwdefaults__ = {
        "fsdpdoctor_original": original,
        "fsdpdoctor_there": there,
    }
    function.__code__ = _passing.__code__.replace(
        co_freevars=code.co_freevars, co_filename=code.co_filename
    )


def _beneath(there: Any) -> Any:
    """What stands in a place once layers that have stepped aside are taken off."""
    while True:
        inner = there
        if isinstance(there, StandIn):
            inner = there.fsdpdoctor_beneath()
        function: Any = there.__func__ if isinstance(there, staticmethod) else there
        if is_compiled(function):
            beneath = function.beneath()
            inner = there if beneath is function else beneath
        elif isinstance(function, FunctionType):
            inner = (function.__kwdefaults__ or {}).get("fsdpdoctor_there", there)
        if inner is there:
            return there
        there = inner


def _callable_of(owner: Any, there: Any) -> Any:
    """How something in a class or module is called; None where a function in its
    place would be called otherwise (a mock in a class is not bound to an object).
    """
    if not isinstance(owner, type):
        return there
    if isinstance(there, staticmethod):
        return there.__func__
    bound = (FunctionType, MethodDescriptorType, WrapperDescriptorType)
    return there if isinstance(there, bound) or is_compiled(there) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A layer of ours, and what it lies on."""

    owner: Any
    name: str
    base: Any  # as it stands in the owner
    original: Any  # as it is called
    was_own: bool  # not inherited
    layer: Any
    make: Wrap | None = None


class Patches:
    """Functions replaced under their own names, as a set that can be undone.

    See [Note: Layers].
    """

    def __init__(self) -> None:
        self.left_alone: list[str] = []
        self._layers: list[_Layer] = []
        self._made: dict[tuple[int, str], _Layer] = {}
        self._cells: list[tuple[CellType, Function, Function]] = []

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace `owner.name`, which `replacement` calls, until `undo`."""
        base, was_own = self._there(owner, name)
        original = _callable_of(owner, base)
        original = getattr(owner, name) if original is None else original
        _named_as(replacement, original)
        self._put(
            _Layer(
                owner=owner,
                name=name,
                base=base,
                original=original,
                was_own=was_own,
                layer=replacement,
            )
        )

    def wrap(self, owner: Any, name: str, make: Wrap) -> None:
        """Put `make(what is there)` around what is there, until `undo`.

        What was made is used again where the same is there the next time.
        """
        base, was_own = self._there(owner, name)
        made = self._made.get((id(owner), name))
        if made is None or made.base is not base or made.make is not make:
            original = _callable_of(owner, base)
            if original is None:
                self.left_alone.append(f"{name} is a {type(base).__name__}")
                return
            layer: Any = make(original)
            _named_as(layer, original)
            if isinstance(base, staticmethod):
                layer = staticmethod(layer)
            made = _Layer(
                owner=owner,
                name=name,
                base=base,
                original=original,
                was_own=was_own,
                layer=layer,
                make=make,
            )
            self._made[id(owner), name] = made
        self._put(made)

    def put_inside(self, owner: Any, name: str, wrap: Wrap) -> None:
        """Wrap what a decorated function calls, so that whoever has imported it by
        name is heard, too; a function without a decorator is replaced in its owner.
        """
        function = getattr(owner, name)
        for cell in getattr(function, "__closure__", None) or ():
            inner = cell.cell_contents
            # Its decorator has given the function the name of what it calls.
            if getattr(inner, "__name__", None) == function.__name__:
                inner = _beneath(inner)
                layer = wrap(inner)
                self._cells.append((cell, inner, layer))
                cell.cell_contents = layer
                return
        self.put(owner, name, wrap(_beneath(function)))

    def undo(self) -> None:
        """Take off what is still on top, newest first; the rest steps aside."""
        while self._cells:
            cell, inner, layer = self._cells.pop()
            if cell.cell_contents is layer:
                cell.cell_contents = inner
            else:
                _step_aside(layer, inner, inner)
        while self._layers:
            # Somebody's class may refuse; the others are undone all the same.
            with contextlib.suppress(Exception):
                self._take_off(self._layers.pop())

    def _there(self, owner: Any, name: str) -> tuple[Any, bool]:
        own = vars(owner)
        if name in own:
            return _beneath(own[name]), True
        return inspect.getattr_static(owner, name, None), False

    def _put(self, layer: _Layer) -> None:
        self._layers.append(layer)
        setattr(layer.owner, layer.name, layer.layer)

    def _take_off(self, layer: _Layer) -> None:
        owner, name = layer.owner, layer.name
        if vars(owner).get(name) is not layer.layer:
            _step_aside(layer.layer, layer.original, layer.base)
            self._made = {k: m for k, m in self._made.items() if m is not layer}
        elif layer.was_own:
            setattr(owner, name, layer.base)
        else:
            delattr(owner, name)


class HookSet:
    """Wraps in several owners, put in place and taken off together."""

    def __init__(self) -> None:
        self.patches = Patches()
        self._wraps: list[tuple[Any, dict[str, Wrap]]] = []

    def add(self, owner: Any, wraps: dict[str, Wrap]) -> None:
        """One more owner, with what goes around its functions."""
        self._wraps.append((owner, wraps))

    def install(self) -> None:
        """Put each around what is there now."""
        for owner, wraps in self._wraps:
            for name, make in wraps.items():
                self.patches.wrap(owner, name, make)
