"""FSDP2's hooks of one step on the host, as labels will show them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fsdpdoctor.analysis.timeline import of_kinds
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import UNKNOWN, Flag, Hook, Kind, Phase, Spans

PREFETCH = Flag.FORWARD_PREFETCH | Flag.BACKWARD_PREFETCH


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hooks:
    """Hooks by name. A hook lasts until the gather that it issued was issued."""

    spans: Spans
    names: tuple[str, ...]  # [len(spans)]

    def within(self, micro_batch: int) -> Hooks:
        """Those of one micro-batch; all, where they or the caller do not know it."""
        mine = self.spans.micro_batch == micro_batch
        if micro_batch == UNKNOWN or not mine.any():
            return self
        names = tuple(
            name for name, is_one in zip(self.names, mine, strict=True) if is_one
        )
        return Hooks(spans=self.spans.rows(mine), names=names)

    def of(self, name: str, unit: int, phase: int) -> tuple[Int64s, Int64s]:
        """Starts and ends of one unit's hooks of a name and phase."""
        mine = np.array([one == name for one in self.names], dtype=np.bool_)
        mine &= (self.spans.unit == unit) & (self.spans.phase == phase)
        return self.spans.start_ns[mine], self.spans.end_ns[mine]

    def leaving(self, kind: Kind, unit: int, phase: int) -> Int64s:
        """When a unit's passes of a kind were left."""
        if kind == Kind.FORWARD:
            return self.of(Hook.POST_FORWARD, unit, phase)[0]
        starts = [
            self.of(name, unit, Phase.BACKWARD)[0]
            for name in (Hook.POST_BACKWARD, Hook.POST_BACKWARD_ACCUMULATE)
        ]
        return np.sort(np.concatenate(starts))


def hooks_of(data: RankData, spans: Spans) -> Hooks:
    """The hooks of a step, by start."""
    hooks = of_kinds(spans, Kind.HOOK)
    hooks = hooks.rows(np.argsort(hooks.start_ns, kind="stable"))
    names = tuple(data.name(name) or "" for name in hooks.name.tolist())
    ends = hooks.end_ns.copy()
    gathers = spans.rows((spans.kind == Kind.UNSHARD) & (spans.flags & PREFETCH == 0))
    for i, name in enumerate(names):
        if name not in (Hook.PRE_FORWARD, Hook.PRE_BACKWARD):
            continue
        after = hooks.start_ns[i + 1] if i + 1 < len(names) else None
        own = (gathers.by_unit == hooks.unit[i]) & (
            gathers.start_ns >= hooks.start_ns[i]
        )
        if after is not None:
            own &= gathers.start_ns < after
        if own.any():
            ends[i] = max(ends[i], int(gathers.end_ns[own].max()))
    return Hooks(spans=replace(hooks, end_ns=ends), names=names)
