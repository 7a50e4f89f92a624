"""When in a step a rank's memory was highest, and what was alive then."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.schema import UNKNOWN, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The highest sample of one step of one rank."""

    curve: str  # the column of `MemorySamples` that it is of
    time_ns: int
    bytes: int
    unit: str | None  # that ran then; None: none of the model's
    phase: str
    gathered_bytes: int | None  # of it unsharded parameters; None: not measured
    alive: tuple[tuple[str, int | None], ...]  # unsharded units, largest first


CURVES = ("allocated_bytes", "unsharded_bytes")
"""What a peak is of: the allocator's, else of the parameters that are gathered."""


def memory_peak(rank: RankMeasures, step: int) -> MemoryPeak | None:
    """None where no memory was sampled within the step."""
    at_step = int(np.flatnonzero(rank.steps.step == step)[0])
    begin = int(rank.steps.start_ns[at_step])
    end = begin + int(rank.steps.duration_ns[at_step])
    memory = rank.memory
    inside = (memory.time_ns >= begin) & (memory.time_ns <= end)
    rows = memory.rows((rank.memory_step == step) & inside)
    for curve in CURVES:
        values = getattr(rows, curve)
        if not (values > 0).any():  # nothing is gathered where nothing is sharded
            continue
        at = int(np.argmax(values))
        time_ns, gathered = int(rows.time_ns[at]), int(rows.unsharded_bytes[at])
        return MemoryPeak(
            curve=curve,
            time_ns=time_ns,
            bytes=int(values[at]),
            unit=rank.unit_name(int(rows.unit[at])),
            phase=Phase(int(rows.phase[at])).name.lower(),
            gathered_bytes=None if gathered == UNKNOWN else gathered,
            alive=_alive(rank, time_ns),
        )
    return None


def _alive(rank: RankMeasures, time_ns: int) -> tuple[tuple[str, int | None], ...]:
    """The units that are unsharded at a moment."""
    windows = rank.windows
    rows = windows.rows((windows.start_ns <= time_ns) & (windows.end_ns > time_ns))
    found: dict[str, int | None] = {}
    for unit, count in zip(rows.unit.tolist(), rows.bytes.tolist(), strict=True):
        name = rank.unit_name(unit)
        if name is not None:
            found[name] = None if count == UNKNOWN else count
    return tuple(sorted(found.items(), key=lambda one: (-(one[1] or 0), one[0])))
