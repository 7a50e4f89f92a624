"""An error of ours ends the recording; an error of theirs is theirs."""

from __future__ import annotations

from typing import Any

import pytest

from fsdpdoctor.recorder.patching import Guard, Patches, bracket


class Target:
    """What is patched."""

    def double(self, value: int) -> int:
        """Twice the value; negative ones are refused."""
        if value < 0:
            raise ValueError(value)
        return 2 * value


class Inherits(Target):
    """Has no `double` of its own."""


def guard() -> tuple[Guard, list[str]]:
    """A guard, and what it stopped for."""
    stopped: list[str] = []
    return Guard(stopped.append), stopped


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


@pytest.mark.parametrize(("before", "after"), [(breaks, nothing), (nothing, breaks)])
def test_our_error_stops_the_recording_and_nothing_else(
    before: Any, after: Any
) -> None:
    """The call goes through; it is said once, with where it was."""
    watch, stopped = guard()
    double = bracket(Target.double, watch, before, after)

    with pytest.warns(RuntimeWarning, match="stopped recording, training goes on"):
        assert double(Target(), 3) == 6
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
