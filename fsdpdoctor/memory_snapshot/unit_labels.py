"""Which FSDP unit an allocation belongs to, by the ranges that were open.

torch records ranges of `record_function` with the allocator's history. FSDP2's name
their unit: one that is open holds what FSDP2 itself allocates. A module's own lie
between two of them: after `pre_forward (u)` has ended and before `post_forward (u)`
begins, after `pre_backward (u)` and before `post_backward_... (u)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.fsdp2.labels import ParsedLabel, parse_label
from fsdpdoctor.memory_snapshot.snapshot import Annotation
from fsdpdoctor.schema import Hook
from fsdpdoctor.schema.memory import Bucket

NO_RANGES = (
    "no FSDP2 range was recorded: "
    "_record_memory_history(global_record_annotations=True) records them"
)
NO_RANGE_THEN = "no FSDP2 range was open then"

_OPENS = (Hook.PRE_FORWARD, Hook.PRE_BACKWARD)
_CLOSES = {
    Hook.POST_FORWARD: (Hook.PRE_FORWARD,),
    Hook.POST_BACKWARD_ACCUMULATE: _OPENS,
    Hook.POST_BACKWARD_RESHARD: _OPENS,
    Hook.POST_BACKWARD_REDUCE: _OPENS,
}

_OF_RANGE = frozenset(
    {
        Bucket.GATHERED_PARAMETERS,
        Bucket.GATHER_OUTPUTS,
        Bucket.POST_FORWARD_SHARDS,
        Bucket.REDUCE_INPUTS,
        Bucket.GRADIENTS,
        Bucket.UNSHARDED_GRADIENTS,
    }
)
"""What FSDP2 allocates itself, within a range of the unit's."""

_OF_PASS = frozenset({Bucket.ACTIVATIONS, Bucket.BACKWARD, Bucket.UNSHARDED_GRADIENTS})
"""What is allocated while a unit's forward or backward runs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitLabels:
    """The units of open ranges and of running passes, R times."""

    since_us: npt.NDArray[np.int64]  # [R]
    in_range: tuple[str | None, ...]  # [R], of the innermost range with a unit
    in_pass: tuple[str | None, ...]  # [R], of the innermost forward or backward

    def unit_at(self, time_us: int, bucket: Bucket | None) -> str | None:
        """Whose an allocation of a bucket is; None where no range says so."""
        at = int(np.searchsorted(self.since_us, time_us, side="right")) - 1
        if at < 0 or bucket is None:
            return None
        found = self.in_range[at] if bucket in _OF_RANGE else None
        return found or (self.in_pass[at] if bucket in _OF_PASS else None)


class _Open:
    """Ranges that are open, and passes that run, innermost last."""

    def __init__(self) -> None:
        self.ranges: list[tuple[str, str | None]] = []  # name, unit
        self.passes: list[tuple[Hook, str]] = []  # what opened it, unit

    def begin(self, name: str, parsed: ParsedLabel) -> None:
        """A range opens. A forward may have opened once for each of a unit's modules,
        and recomputation opens one within the backward.
        """
        closed = _CLOSES.get(parsed.label, ())
        self.passes = [
            (hook, unit)
            for hook, unit in self.passes
            if unit != parsed.unit or hook not in closed
        ]
        self.ranges.append((name, parsed.unit))

    def end(self, name: str, parsed: ParsedLabel) -> None:
        """The innermost range of that name ends."""
        for at in range(len(self.ranges) - 1, -1, -1):
            if self.ranges[at][0] == name:
                del self.ranges[at]
                break
        if parsed.label in _OPENS and parsed.unit is not None:
            self.passes.append((parsed.label, parsed.unit))

    @property
    def unit(self) -> str | None:
        return next((unit for _, unit in reversed(self.ranges) if unit), None)


def unit_labels(annotations: Sequence[Annotation]) -> UnitLabels:
    """Follow FSDP2's ranges. Those of two threads nest: backward's runs while the
    script's thread waits for it.
    """
    since: list[int] = []
    in_range: list[str | None] = []
    in_pass: list[str | None] = []
    now = _Open()
    for one in annotations:
        parsed = parse_label(one.name)
        if parsed is None:
            continue
        if one.begins:
            now.begin(one.name, parsed)
        else:
            now.end(one.name, parsed)
        since.append(one.time_us)
        in_range.append(now.unit)
        in_pass.append(now.passes[-1][1] if now.passes else None)
    return UnitLabels(
        since_us=np.array(since, np.int64),
        in_range=tuple(in_range),
        in_pass=tuple(in_pass),
    )
