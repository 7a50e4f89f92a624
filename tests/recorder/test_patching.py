"""An error of ours ends the recording; an error of theirs is theirs."""

from __future__ import annotations

import functools
import inspect
import time
import traceback
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from fsdpdoctor.quantities import MS
from fsdpdoctor.recorder.brackets import PASS_BY, bracket
from fsdpdoctor.recorder.patching import ErrorBorder, Patches


class Target:
    """What is patched."""

    def double(self, value: int) -> int:
        """Twice the value; negative ones are refused."""
        if value < 0:
            raise ValueError(value)
        return 2 * value


class Inherits(Target):
    """Has no `double` of its own."""


def test_a_layer_answers_for_what_it_wraps() -> None:
    """Name, place, signature and source: a tool looks before it wraps in turn."""

    def make(original: Any) -> Any:
        return lambda *args, **kwargs: original(*args, **kwargs)

    asked = Target.double
    before = (asked.__module__, asked.__qualname__, asked.__doc__)
    signature, source = inspect.signature(asked), inspect.getsource(asked)
    patches = Patches()
    for made in (True, False):
        if made:
            patches.wrap(Target, "double", make)
        else:
            patches.put(Target, "double", lambda *args: 0)
        layer = Target.double
        assert layer is not asked
        assert (layer.__module__, layer.__qualname__, layer.__doc__) == before
        assert inspect.signature(layer) == signature
        assert inspect.getsource(inspect.unwrap(layer)) == source
        patches.undo()
    assert Target.double is asked


def guard() -> tuple[ErrorBorder, list[str]]:
    """A guard, and what it stopped for."""
    stopped: list[str] = []
    return ErrorBorder(stopped.append), stopped


def nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


def breaks(*args: Any, **kwargs: Any) -> None:
    """Our own mistake."""
    raise KeyError("ours")


def test_brackets_a_call() -> None:
    """Before and after see the call; the result passes."""
    seen: list[object] = []

    def before(target: Target, value: int) -> int:
        return value + 100

    def after(token: int, error: BaseException | None) -> None:
        seen.append((token, error))

    watch, stopped = guard()
    double = bracket(Target.double, watch, before, after)

    assert double(Target(), 3) == 6
    assert seen == [(103, None)]
    assert stopped == []
    assert watch.take_cost() > 0
    assert watch.take_cost() == 0


def test_nothing_to_say_ends_a_bracket_early() -> None:
    """`after` is not called; with none there is nothing but the first half."""
    seen: list[object] = []
    watch, stopped = guard()
    double = bracket(
        Target.double, watch, lambda target, value: PASS_BY, lambda *of: seen.append(of)
    )
    assert double(Target(), 3) == 6
    assert seen == []

    double = bracket(Target.double, watch, lambda target, value: seen.append(value))
    assert double(Target(), 4) == 8
    assert seen == [4]
    with pytest.raises(ValueError, match="-1"):
        double(Target(), -1)

    double = bracket(Target.double, watch, breaks)
    assert [double(Target(), 5), double(Target(), 6)] == [10, 12]
    assert len(stopped) == 1


@pytest.mark.parametrize(("before", "after"), [(breaks, nothing), (nothing, breaks)])
def test_our_error_stops_the_recording_and_nothing_else(
    before: Any, after: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The call goes through; it is said once, with where it was."""
    watch, stopped = guard()
    double = bracket(Target.double, watch, before, after)

    assert [double(Target(), 3), double(Target(), 4)] == [6, 8]

    said = capsys.readouterr().err
    assert said.startswith("fsdpdoctor stopped recording, training goes on: KeyError")
    assert said.count("\n") == 1
    assert len(stopped) == 1
    assert stopped[0].startswith("detached: KeyError in breaks:")


def test_their_error_passes_untouched() -> None:
    """`after` hears of it, and it is the same exception."""
    heard: list[BaseException | None] = []
    watch, stopped = guard()
    double = bracket(
        Target.double, watch, nothing, lambda token, error: heard.append(error)
    )

    with pytest.raises(ValueError, match="-1") as caught:
        double(Target(), -1)
    assert heard == [caught.value]
    assert stopped == []


def test_patches_are_undone_in_full() -> None:
    """Own functions come back; inherited ones are inherited again."""
    original = Target.double
    patches = Patches()
    patches.put(Target, "double", nothing)
    patches.put(Target, "double", breaks)
    patches.put(Inherits, "double", nothing)
    patches.undo()

    assert Target.double is original
    assert "double" not in vars(Inherits)


def test_what_we_do_for_them_raises_as_theirs() -> None:
    """A wait that the recorder makes in FSDP2's stead fails once, and passes."""
    waits: list[int] = []

    def wait() -> None:
        waits.append(1)
        raise ValueError("connection closed by peer")

    watch, stopped = guard()
    double = bracket(
        Target.double, watch, lambda target, value: watch.user_call(wait), nothing
    )

    with pytest.raises(ValueError, match="connection closed by peer"):
        double(Target(), 3)
    with pytest.raises(ValueError, match="connection closed by peer"):
        watch.run(watch.user_call, wait)
    assert waits == [1, 1]
    assert stopped == []


def test_time_spent_for_them_is_no_cost() -> None:
    """A wait inside our border is taken out of what the recorder costs."""
    watch, _ = guard()

    watch.run(watch.user_call, lambda: time.sleep(0.05))

    assert watch.take_cost() < 25 * MS  # half of the sleep: a margin for a busy machine


def test_a_warning_names_the_line_that_it_would_without_us() -> None:
    """`stacklevel` counts frames; a wrapper's own is not among them."""

    def double(target: Target, value: int) -> int:
        warnings.warn("negative soon", UserWarning, stacklevel=2)
        return 2 * value

    watch, _ = guard()
    bracketed = bracket(double, watch, nothing, nothing)

    with pytest.warns(UserWarning, match="negative soon") as plain:
        double(Target(), 3)
    with pytest.warns(UserWarning, match="negative soon") as wrapped:
        bracketed(Target(), 3)
    assert wrapped[0].filename == plain[0].filename == __file__


def decorated(function: Any) -> Any:
    """As torch does: another function, of the same name."""

    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def twice(value: int) -> int:
    """Twice the value."""
    return 2 * value


def test_a_decorated_function_is_heard_by_whoever_imported_it() -> None:
    """It stays the same object; one without a decorator is replaced by name."""
    module = SimpleNamespace(plain=twice, wrapped=decorated(twice))
    imported = module.wrapped
    patches = Patches()
    patches.put_inside(module, "wrapped", lambda inner: lambda value: inner(value) + 1)
    patches.put_inside(module, "plain", lambda inner: lambda value: inner(value) + 10)

    assert (imported(3), module.wrapped(3)) == (7, 7)
    assert (twice(3), module.plain(3)) == (6, 16)
    patches.undo()
    assert (imported(3), module.plain(3)) == (6, 6)
    assert (module.wrapped, module.plain) == (imported, twice)


def test_after_its_first_error_nothing_of_ours_runs() -> None:
    """The second half of a hook that has failed puts nothing back in place."""
    border, stopped = guard()
    calls: list[str] = []
    border.run(calls.append, "before")
    border.fail(KeyError("ours"))
    assert border.run(calls.append, "after") is None
    assert calls == ["before"]
    assert len(stopped) == 1


def test_a_traceback_has_no_frame_of_ours() -> None:
    """A script may print it: those of nested brackets, and of what they wrap."""

    def fails(deep: int) -> None:
        if deep:
            around(deep - 1)
        raise KeyError("theirs")

    around = bracket(fails, guard()[0], lambda *_: None, lambda *_: None)

    def of(call: Any) -> list[tuple[str, str]]:
        try:
            call(2)
        except KeyError as error:
            return [
                (frame.filename.rsplit("/")[-1], frame.name)
                for frame in traceback.extract_tb(error.__traceback__)
            ]
        return []

    here = "test_patching.py"
    assert of(around) == [(here, "of"), *[(here, "fails")] * 3]


def test_an_error_of_theirs_is_not_said_to_be_of_the_handling_of_ours() -> None:
    """Ours ends the recording, and theirs follows in the same call."""

    def ours(*_: Any) -> None:
        raise RuntimeError("ours")

    watch, stopped = guard()
    with pytest.raises(ValueError, match="-1") as raised:
        bracket(Target.double, watch, ours, ours)(Target(), -1)
    assert raised.value.__context__ is None
    assert len(stopped) == 1
