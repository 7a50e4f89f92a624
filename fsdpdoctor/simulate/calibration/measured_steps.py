"""The steps of one rank that figures are taken from, and what they show at once.

[Note: Middle steps]
Medians of parts do not add up to the median of the whole where noise is skewed; means
do, but one odd step bends them. So figures are means over the middle half of the
steps, by duration: what an odd step did is left out, and the parts add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from fsdpdoctor.analysis.stall_causes import own_durations
from fsdpdoctor.analysis.timeline import Collectives, Timeline, of_kinds
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    UNKNOWN,
    Flag,
    Hook,
    Kind,
    Spans,
    UnitSpec,
)
from fsdpdoctor.simulate.calibration.partition import (
    VIRTUAL_ROOT,
    Shape,
    device_partition,
    host_partition,
    shape_of,
)


class MeasuredSteps:
    """One rank's steps, and what has been worked out of them so far."""

    def __init__(self, data: RankData, lines: Sequence[Timeline]) -> None:
        self.data = data
        alike = _alike(lines)
        self._every = lines
        self.step_ns = np.array([line.duration_ns for line in alike])
        self.lines = _middle(alike)
        self.shape: Shape = shape_of(self.lines[-1])
        self.blocking = data.header.clock == "host"
        order = [u for u in self.shape.walk(self.shape.root) if u != VIRTUAL_ROOT]
        self.units = [m for u in order for m in self.shape.states[u]]
        self.number = {old: new for new, old in enumerate(self.units)}
        self.collectives = Collectives.concat([x.collectives for x in self.lines])
        self.durations = own_durations(self.collectives)
        self.device = [device_partition(x, self.shape) for x in self.lines]
        self.host = (
            [] if self.blocking else [host_partition(x, self.shape) for x in self.lines]
        )
        self._copies: dict[Kind, Spans] = {}  # of all lines

    def spec(self, unit: int) -> UnitSpec:
        return self.data.header.units[unit]

    def each(self, kind: Kind, unit: int) -> int:
        """What a unit's copies take each."""
        if kind not in self._copies:
            self._copies[kind] = Spans.concat(
                [of_kinds(line.spans, kind) for line in self.lines]
            )
        copies = self._copies[kind]
        took = copies.duration_ns[copies.unit == unit]
        return round(float(took.mean())) if len(took) else 0

    def bytes_of(self, kind: Kind, unit: int) -> int:
        rows = (self.collectives.kind == kind) & (self.collectives.unit == unit)
        return int(self.collectives.bytes[rows].max()) if rows.any() else UNKNOWN

    def callbacks(self) -> Spans:
        """The hooks that end a backward, of one step."""
        hooks = of_kinds(self.lines[-1].spans, Kind.HOOK)
        names = [self.data.name(int(n)) for n in hooks.name]
        named = [name == "root_post_backward_callback" for name in names]
        return hooks.rows(np.array(named, dtype=bool))

    @cached_property
    def backwards(self) -> frozenset[int]:
        """Units that ran backward: a frozen trunk's do not."""
        spans = of_kinds(self.lines[-1].spans, Kind.BACKWARD)
        return frozenset(spans.unit.tolist())

    @cached_property
    def begun_before_parents(self) -> frozenset[int]:
        """Last children whose backward began before that of the unit around them.

        That is so where a unit's output is its child's own: hooks on one tensor run
        in the order in which they were registered.
        """
        spans = self.lines[-1].spans
        hooks = of_kinds(spans.rows(spans.micro_batch == 0), Kind.HOOK)
        begun: dict[int, int] = {}
        for name, unit, start in zip(
            hooks.name, hooks.unit, hooks.start_ns, strict=True
        ):
            if self.data.name(int(name)) == Hook.PRE_BACKWARD:
                begun[int(unit)] = min(int(start), begun.get(int(unit), int(start)))
        return frozenset(
            children[-1]
            for unit, children in self.shape.children.items()
            if children and unit in begun and children[-1] in begun
            if begun[children[-1]] < begun[unit]
        )

    @cached_property
    def ran_at_times(self) -> tuple[str, ...]:
        """Units that ran in some steps and not in others, by name."""
        ran = []
        for line in self._every:
            spans = of_kinds(line.spans, Kind.FORWARD)
            ran.append(set(spans.unit[spans.flags & Flag.NO_GRAD == 0].tolist()))
        always = set.intersection(*ran)
        return tuple(self.spec(u).fqn for u in sorted(set.union(*ran) - always))

    def unlike_ns(self, middle: int) -> int:
        """How far steps of another sort, not too few to matter, are from these."""
        kinds = _kinds(self._every)
        kept = kinds[self._every.index(self.lines[-1])]
        off = [
            abs(float(np.mean(durations)) - middle)
            for kind in set(kinds)
            if kind != kept and kinds.count(kind) >= MIN_SHARE * len(kinds)
            for durations in [
                [
                    line.duration_ns
                    for line, other in zip(self._every, kinds, strict=True)
                    if other == kind
                ]
            ]
        ]
        return round(max(off, default=0.0))

    def recomputed(self) -> set[int]:
        """Units whose own forward hooks ran again in backward."""
        spans = of_kinds(self.lines[-1].spans, Kind.FORWARD)
        return set(spans.unit[spans.flags & Flag.RECOMPUTE != 0].tolist())


MIN_SHARE = 0.05
"""Of the steps: fewer of another sort are taken for accidents."""


def _kinds(lines: Sequence[Timeline]) -> list[tuple[int, int]]:
    return [(x.record.micro_batches, len(x.collectives)) for x in lines]


def _alike(lines: Sequence[Timeline]) -> list[Timeline]:
    """The steps with the usual number of micro-batches and collectives."""
    kinds = _kinds(lines)
    usual = max(set(kinds), key=kinds.count)
    return [x for x, kind in zip(lines, kinds, strict=True) if kind == usual]


MIN_MIDDLE = 3
"""Of fewer steps all are taken."""


def _middle(lines: Sequence[Timeline]) -> list[Timeline]:
    """The middle half by duration, in their order. See [Note: Middle steps]."""
    ordered = sorted(lines, key=lambda line: line.duration_ns)
    aside = min(len(ordered) // 4, max(len(ordered) - MIN_MIDDLE, 0) // 2)
    kept = ordered[aside : len(ordered) - aside]
    return sorted(kept, key=lambda line: line.step)
