"""What memory is held for at the peak of a simulated step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from fsdpdoctor.schema import UNKNOWN, Flag, Phase
from fsdpdoctor.simulate.engine.opcodes import COMPUTE, Held, Meta, Op
from fsdpdoctor.simulate.engine.schedule import program
from fsdpdoctor.simulate.engine.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The moment at which most is held."""

    bytes: int  # of everything
    held: Mapping[Held, int]
    other_bytes: int  # the segments' own: activations
    unit: int  # whose segment runs, or UNKNOWN
    segment: int  # which one, or UNKNOWN
    phase: Phase


def peak_of(step: Step) -> Peak:
    """The first moment at which a step needs the most, split by what for."""
    plan = program(step)
    moves = iter(plan.moves)
    move = next(moves, None)
    held: dict[Held, int] = defaultdict(int)
    best = Peak(
        bytes=step.resident_bytes,
        held={},
        other_bytes=0,
        unit=UNKNOWN,
        segment=UNKNOWN,
        phase=Phase(0),
    )
    for at, (op, meta) in enumerate(zip(plan.ops, plan.meta, strict=True)):
        while move is not None and move[0] <= at:
            held[Held(move[1])] += move[3]
            best = _larger(best, step, held, 0, meta)
            move = next(moves, None)
        best = _larger(best, step, held, _other(step, op, meta), meta)
    return best


def _larger(
    best: Peak, step: Step, held: Mapping[Held, int], other: int, meta: Meta
) -> Peak:
    total = step.resident_bytes + sum(held.values()) + other
    if total <= best.bytes:
        return best
    return Peak(
        bytes=total,
        held=dict(held),
        other_bytes=other,
        unit=meta[0],
        segment=meta[5],
        phase=Phase(meta[1]),
    )


def _other(step: Step, op: Op, meta: Meta) -> int:
    """What the segment that an operation runs allocates itself."""
    if op[0] != COMPUTE or meta[5] == UNKNOWN:
        return 0
    segment = step.segments[meta[5]]
    backward = meta[1] == Phase.BACKWARD and not meta[4] & Flag.RECOMPUTE
    return segment.other_backward_bytes if backward else segment.other_forward_bytes
