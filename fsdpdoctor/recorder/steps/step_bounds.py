"""A step's edges, and who is told of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from fsdpdoctor.recorder.storage.recording import BufferPosition
from fsdpdoctor.schema import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A step's edge, on both clocks."""

    host_ns: int
    tick: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBounds:
    """A step that has ended."""

    step: int
    start: Moment
    end: Moment
    micro_batches: int
    tokens: int
    samples: int
    cost_ns: int
    complete: bool = True


class Sink(Protocol):
    """Who writes steps down, and switches between full and light hooks."""

    def turn(self, on: bool) -> None:
        """Keep rows from here on, or stop."""
        ...

    def step_recorded(
        self, bounds: StepBounds, rows: BufferPosition, of_pass: dict[int, int]
    ) -> None:
        """A step has ended whose rows are the first of the buffers, each with the
        pass in which it was made; passes are of micro-batches.
        """
        ...

    def step_timed(self, bounds: StepBounds) -> None:
        """A step has ended that was not recorded."""
        ...

    def step_ends(self) -> None:
        """A recorded step is about to end: its edge is not yet taken."""
        ...

    def boundary(self) -> None:
        """A recorded step ends, perhaps: another optimizer may follow."""
        ...

    def step_began(self) -> None:
        """What follows belongs to the next step, which is recorded."""
        ...

    def pass_boundary(self, phase: Phase) -> None:
        """A root's forward or backward begins or ends."""
        ...

    def tree_known(self, root_state: Any) -> None:
        """A tree of units can be described."""
        ...

    def root_forward(self, module: Any) -> None:
        """A root's forward with gradients begins."""
        ...
