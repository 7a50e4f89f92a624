"""One process that is rank 0 of 8, as the simulator's tests have it."""

from tests.simulate.conftest import one_thread, world

__all__ = ["one_thread", "world"]
