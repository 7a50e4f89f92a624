"""A hook in C stands where a function was, and is taken for it."""

from __future__ import annotations

import copy
import inspect
import pickle
import weakref
from typing import Any
from unittest import mock

import pytest

from fsdpdoctor.recorder.patching import Patches, is_compiled
from tests.recorder.tape.taped import Group, Taped

pytest.importorskip(
    "fsdpdoctor._tape", reason="it is not built: pip install . where a compiler is"
)


def test_a_hook_is_bound_and_named_as_a_function_is() -> None:
    """Whoever asks what it is, or pickles it, is answered as without us."""
    taped = Taped()
    patches = Patches()
    original = Group.method
    patches.wrap(Group, "method", taped.around)
    try:
        hook = vars(Group)["method"]
        assert is_compiled(hook)
        group = Group()
        assert group.method(1) == (group, (1,), {})
        bound: Any = group.method
        assert bound.__self__ is group
        assert Group.method.__name__ == "method"
        assert Group.method.__doc__ == original.__doc__
        assert inspect.signature(Group.method) == inspect.signature(original)
        assert inspect.unwrap(Group.method) is original
        assert pickle.loads(pickle.dumps(Group.method)) is hook
        assert copy.deepcopy(hook) is hook
        assert weakref.ref(hook)() is hook
    finally:
        patches.undo()
    assert Group.method is original


def test_a_hook_is_taken_for_the_function_that_it_is_around() -> None:
    """By `isinstance`, by `inspect`, and by what looks at a function's parts."""
    taped, original = Taped(), Group.method
    patches = Patches()
    patches.wrap(Group, "method", taped.around)
    try:
        hook: Any = Group.method
        assert is_compiled(hook)
        said = inspect.isfunction(hook), inspect.ismethoddescriptor(hook)
        assert said == (True, False)
        assert inspect.getfullargspec(hook) == inspect.getfullargspec(original)
        assert inspect.getsourcefile(hook) == __file__.replace(
            "test_as_functions", "taped"
        )
        assert hook.__code__ is original.__code__
        assert hook.__defaults__ is original.__defaults__
        assert hook.__globals__ is original.__globals__
        assert repr(hook).startswith("<function Group.method at 0x")
        hook.__defaults__ = (5,)
        assert original.__defaults__ == (5,)
    finally:
        patches.undo()
        original.__defaults__ = None


def test_a_mock_of_a_hook_is_given_the_object() -> None:
    """`unittest.mock` asks whether a function stands there."""
    taped, group, original = Taped(), Group(), Group.method
    patches = Patches()
    patches.wrap(Group, "method", taped.around)
    try:
        hook = Group.method
        with mock.patch.object(
            Group, "method", autospec=True, side_effect=hook
        ) as mocked:
            assert group.method(1, two=2) == (group, (1,), {"two": 2})
        mocked.assert_called_once_with(group, 1, two=2)
    finally:
        patches.undo()
    assert Group.method is original


def test_a_hook_that_somebody_has_wrapped_steps_aside() -> None:
    """And one that comes to lie on top again is replaced."""
    taped = Taped()
    patches = Patches()
    original = Group.method
    patches.wrap(Group, "method", taped.around)
    ours = Group.method

    def theirs(self: Any, *args: Any) -> Any:
        return ours(self, *args)

    Group.method = theirs  # type: ignore[method-assign]
    try:
        patches.undo()
        assert Group().method(1)[1] == (1,)
        assert taped.rows() == []
        Group.method = ours  # type: ignore[method-assign]
        patches.wrap(Group, "method", taped.around)  # in its place, not around it
        Group().method(2)
        assert len(taped.rows()) == 2
        assert inspect.unwrap(Group.method) is original
        patches.undo()
    finally:
        Group.method = original  # type: ignore[method-assign]
