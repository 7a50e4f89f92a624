"""A step's edges."""

from __future__ import annotations

from dataclasses import dataclass


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
