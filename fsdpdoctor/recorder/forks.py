"""Forked children of a rank: they are no ranks, and everything of ours is taken out.

A fork is heard for good, Python cannot stop hearing it: so it is asked for once, and
keeps nothing of ours alive.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """What must know that it is in a child now."""

    def forked(self) -> None:
        """It is: nothing of it may act any more."""
        ...


_known: weakref.WeakSet[Forkable] = weakref.WeakSet()
_hears = False


def see_forks(one: Forkable) -> None:
    """Have it told in every child that is forked from here on."""
    global _hears
    _known.add(one)
    if not _hears:
        os.register_at_fork(after_in_child=_forked)
        _hears = True


def _forked() -> None:
    for one in list(_known):
        try:
            one.forked()
        except Exception:  # the child is not ours to end
            continue
