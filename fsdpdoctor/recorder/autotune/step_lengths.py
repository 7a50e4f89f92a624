"""How long steps take, on the device where there is one, without waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch

from fsdpdoctor.recorder.autotune.decisions import Decision

_cuda: Any = torch.cuda  # its stubs type half of it

KEPT = 512
"""Steps that are remembered: more than one round of a trial has."""


class Length(NamedTuple):
    """One step: from its first pass to the next step's first pass."""

    first_pass: int
    end_pass: int
    ns: float


class _Start(NamedTuple):
    at_pass: int
    host_ns: int
    event: Any  # on the device; None: the host's time counts


class StepLengths:
    """Fed by the training thread where a step begins; read by another."""

    def __init__(self, *, on_device: bool) -> None:
        self._on_device = on_device
        self._open: deque[tuple[_Start, _Start]] = deque()
        self._last: _Start | None = None
        self.known: deque[Length] = deque(maxlen=KEPT)

    def begins(self, at_pass: int) -> None:
        """A step begins with this pass."""
        start = _Start(at_pass, perf_counter_ns(), self._event())
        if self._last is not None:
            self._open.append((self._last, start))
        self._last = start
        while self._open and self._happened(self._open[0]):
            self.known.append(_length(*self._open.popleft()))

    def _event(self) -> Any:
        if not self._on_device or torch.cuda.is_current_stream_capturing():
            return None
        event = _cuda.Event(enable_timing=True)
        event.record()
        return event

    def _happened(self, ends: tuple[_Start, _Start]) -> bool:
        events = [start.event for start in ends]
        return None in events or all(event.query() for event in events)

    def usual_ns(self) -> float | None:
        """Of the last steps; None before there are any."""
        lengths = [length.ns for length in list(self.known)[-16:]]
        return median(lengths) if lengths else None

    @property
    def passes(self) -> int:
        """How many the last step had."""
        known = self.known[-1] if self.known else Length(0, 1, 0.0)
        return known.end_pass - known.first_pass

    def ahead(self, steps: int) -> int:
        """The pass with which a step begins so many steps after the one under way."""
        last_pass = 0 if self._last is None else self._last.at_pass
        return last_pass + steps * self.passes

    def until(self, at_pass: int) -> bool:
        """Whether all steps that end before a pass are known."""
        return bool(self.known) and self.known[-1].end_pass >= at_pass


def _length(start: _Start, end: _Start) -> Length:
    ns: float = end.host_ns - start.host_ns
    if start.event is not None and end.event is not None:
        ns = start.event.elapsed_time(end.event) * 1e6
    return Length(start.at_pass, end.at_pass, ns)


class Block(NamedTuple):
    """What was measured of a decision's block."""

    tried: bool
    ns: list[float]


def blocks_of(
    decision: Decision, lengths: Sequence[Length], settling: int
) -> list[Block]:
    """The steps that lie whole in each block, without those that settle after a change.

    Where a step's number of passes has changed, some lie across a change: they count
    for neither.
    """
    found: list[Block] = []
    start, before = decision.at_pass, False
    for passes, tried in decision.blocks:
        end = start + passes
        inside = [n for n in lengths if start <= n.first_pass and n.end_pass <= end]
        skip = settling if tried != before else 0
        found.append(Block(tried, [length.ns for length in inside[skip:]]))
        start, before = end, tried
    return found
