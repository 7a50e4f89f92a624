"""Which steps of which ranks torch.profiler records beside us. Needs no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fsdpdoctor.errors import UsageError

FOLDER = "kineto"
"""Of the traces, in the run's folder."""

FIRST_STEP = 5
"""Caches, allocators and compilers have warmed up by then in most trainings, and the
recorder still records every step."""

DEFAULT_RANKS: tuple[int, ...] = (0, 1)
"""Two ranks are enough to tell a late peer from a slow wire. All ranks of a large job
make hundreds of gigabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerSchedule:
    """Which steps of which ranks torch.profiler records, too."""

    first: int
    count: int
    ranks: tuple[int, ...]

    @property
    def steps(self) -> range:
        return range(self.first, self.first + self.count)

    def note(self, world_size: int) -> str:
        """What a reader of the run must know."""
        ranks = ", ".join(str(rank) for rank in self.ranks if rank < world_size)
        return (
            f"torch.profiler was to run in steps {self.first} to {self.steps[-1]} on "
            f"rank {ranks or 'none'}, which slows them; the traces that were taken are "
            f"in {FOLDER}/"
        )


def capture_of(count: int, ranks: str | None, steps: str | None) -> ProfilerSchedule:
    """What `--kineto N --kineto-ranks 0,1 --steps A:B` ask for. Raises UsageError."""
    if count < 1:
        raise UsageError(f"--kineto is {count}, expected 1 or more steps")
    chosen = DEFAULT_RANKS
    if ranks is not None:
        if re.fullmatch(r"\d{1,9}(,\d{1,9})*", ranks) is None:
            raise UsageError(f"--kineto-ranks is {ranks!r}, expected ranks: 0,1")
        chosen = tuple(sorted({int(rank) for rank in ranks.split(",")}))
    asked = re.match(r"\d{1,18}", steps or "")
    # One step before is needed to start the profiler in.
    first = FIRST_STEP if asked is None else max(int(asked[0]), 1)
    return ProfilerSchedule(first=first, count=count, ranks=chosen)
