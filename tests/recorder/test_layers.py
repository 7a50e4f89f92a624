"""What others patch stays patched, whenever they do it; see [Note: Layers]."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.brackets import bracketing
from fsdpdoctor.recorder.fsdp2.internals import DistProxy
from fsdpdoctor.recorder.patching import ErrorBorder, HookSet

Call = Callable[..., Any]


class Hooked:
    """Two hook sets on one method, swapped as between recorded steps."""

    def __init__(self) -> None:
        class Target:
            def double(self, value: int) -> int:
                return 2 * value

            @staticmethod
            def triple(value: int) -> int:
                return 3 * value

        self.owner: Any = Target
        self.heard: list[str] = []
        self.full, self.light = self._set("full"), self._set("light")

    def _set(self, name: str) -> HookSet:
        def begins(*args: Any) -> None:
            self.heard.append(name)

        hooks = HookSet()
        around = bracketing(ErrorBorder(self.heard.append), begins, nothing)
        hooks.add(self.owner, {"double": around, "triple": around})
        return hooks

    def turn(self, on: bool | None) -> None:
        """Full hooks, light ones or none."""
        self.light.patches.undo()
        self.full.patches.undo()
        if on is not None:
            (self.full if on else self.light).install()

    def call(self) -> tuple[int, list[str]]:
        """The method's result, and who has heard the call."""
        self.heard.clear()
        return self.owner().double(1), list(self.heard)


def nothing(*args: Any) -> None:
    """Do nothing."""


def plus_ten(owner: Any, name: str = "double") -> Call:
    """Patch as a script would; what was there before."""
    before: Call = getattr(owner, name)
    setattr(owner, name, lambda *args: before(*args) + 10)
    return before


@pytest.fixture
def hooked() -> Iterator[Hooked]:
    """Nothing is installed yet."""
    made = Hooked()
    yield made
    made.turn(None)


@pytest.mark.parametrize("when", ["before", "recorded", "between"])
def test_a_patch_of_others_stays(hooked: Hooked, when: str) -> None:
    """Made before us, in a recorded step or between two: it is called in all, and
    one of our layers hears each call.
    """
    if when == "before":
        plus_ten(hooked.owner)
    hooked.turn(when == "recorded")
    if when != "before":
        plus_ten(hooked.owner)

    for _ in range(3):
        hooked.turn(True)
        assert hooked.call() == (12, ["full"])
        hooked.turn(False)
        assert hooked.call() == (12, ["light"])
    hooked.turn(None)
    assert hooked.call() == (12, [])


@pytest.mark.parametrize("saved_while", [True, False])
@pytest.mark.parametrize("restored_while", [True, False])
def test_what_a_tool_saves_and_restores_is_the_original(
    hooked: Hooked, saved_while: bool, restored_while: bool
) -> None:
    """What it has kept may be our layer: that passes on, and nothing grows."""
    original = hooked.owner.double
    for _ in range(200):
        hooked.turn(saved_while)
        before = plus_ten(hooked.owner)
        hooked.turn(not saved_while)
        assert hooked.call()[0] == 12
        hooked.turn(restored_while)
        hooked.owner.double = before
        assert hooked.call()[0] == 2
    hooked.turn(True)
    assert hooked.call() == (2, ["full"])
    hooked.turn(None)
    assert hooked.owner.double is original


def test_a_static_method_stays_one(hooked: Hooked) -> None:
    """Ours around it, theirs around ours, and the original at the end."""
    hooked.turn(True)
    assert (hooked.owner.triple(1), hooked.owner().triple(1)) == (3, 3)
    ours = hooked.owner.triple
    hooked.owner.triple = staticmethod(functools.wraps(ours)(lambda v: ours(v) + 1))
    hooked.turn(False)
    assert (hooked.owner.triple(1), hooked.owner().triple(1)) == (4, 4)
    hooked.turn(None)
    assert hooked.owner().triple(1) == 4


def test_what_is_called_otherwise_is_left_alone(hooked: Hooked) -> None:
    """A mock in a class is not bound to the object; a function of ours would be."""
    with mock.patch.object(hooked.owner, "double", return_value=5) as double:
        hooked.turn(True)
        assert hooked.call() == (5, [])
        double.assert_called_once_with(1)
        hooked.turn(False)
    assert hooked.full.patches.left_alone == ["double is a MagicMock"]


def test_a_module_s_functions_are_set_where_they_are() -> None:
    """Whoever patches what stands for torch.distributed patches torch.distributed,
    is called once, and is heard.
    """
    real = SimpleNamespace(__name__="dist", all_reduce=lambda value: [value])
    heard: list[int] = []

    def call(inner: Call, value: int) -> Any:
        heard.append(value)
        return inner(value)

    proxy: Any = DistProxy(real, {"all_reduce": call})
    before = proxy.all_reduce
    proxy.all_reduce = lambda value: ["theirs", *before(value)]

    assert proxy.all_reduce(1) == ["theirs", 1]
    assert real.all_reduce(2) == ["theirs", 2]
    assert heard == [1, 2]
    proxy.fsdpdoctor_pass()
    assert real.all_reduce(3) == proxy.all_reduce(3) == ["theirs", 3]
    assert heard == [1, 2]


def test_a_signal_handler_s_error_is_theirs() -> None:
    """A time-out that strikes while our code runs reaches the script, and the
    recording goes on.
    """

    def times_out(number: int, frame: Any) -> None:
        raise TimeoutError("of the script")

    stopped: list[str] = []
    guard = ErrorBorder(stopped.append)
    before = signal.signal(signal.SIGUSR1, times_out)
    try:
        with pytest.raises(TimeoutError, match="of the script"):
            guard.run(signal.raise_signal, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert stopped == []


def test_an_interrupt_is_theirs() -> None:
    """It passes as if it had struck one line earlier."""
    stopped: list[str] = []

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    around = bracketing(ErrorBorder(stopped.append), interrupted, nothing)
    with pytest.raises(KeyboardInterrupt):
        around(lambda: 1)()
    assert stopped == []


class Refuses:
    """What a script may put in the place of stderr."""

    def write(self, text: str) -> None:
        """Refuse."""
        raise SystemExit(5)


@pytest.mark.parametrize("stream", [None, Refuses(), SimpleNamespace()])
def test_a_word_is_said_or_not_said(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else comes of it, even where what stops us fails as well."""

    def cannot_stop(reason: str) -> None:
        raise MemoryError

    monkeypatch.setattr("sys.stderr", stream)
    guard = ErrorBorder(cannot_stop)

    assert guard.run(lambda: [][0]) is None
    assert guard.stop_failed
    border.say("a word")
    border.last_words(lambda: [][0])
