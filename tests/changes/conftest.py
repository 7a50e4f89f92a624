"""One process that is rank 0 of 8, as for the simulator's tests."""

from __future__ import annotations

from tests.simulate.conftest import one_thread, world

__all__ = ["one_thread", "world"]
