"""Who must know that it is in a forked child is told there, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from fsdpdoctor.recorder import forks


class Told:
    """Counts how often it was told; the first of two may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.times = 0
        self._error = error

    def forked(self) -> None:
        """It is in a child."""
        self.times += 1
        if self._error is not None:
            raise self._error


def test_a_child_tells_all_though_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system is asked once, for however many there are."""
    asked: list[Callable[[], None]] = []
    monkeypatch.setattr(
        os,
        "register_at_fork",
        lambda after_in_child: asked.append(after_in_child),
    )
    monkeypatch.setattr(forks, "_hears", False)
    monkeypatch.setattr(forks, "_known", type(forks._known)())
    both = Told(RuntimeError("ours")), Told()
    for one in both:
        forks.see_forks(one)
    (in_child,) = asked
    assert [one.times for one in both] == [0, 0]
    in_child()

    assert [one.times for one in both] == [1, 1]
