"""The model as a tree of modules, with the compute between its units."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from fsdpdoctor.analysis.timeline import of_kinds
from fsdpdoctor.schema import (
    Flag,
    Kind,
    one_of,
)
from fsdpdoctor.simulate.calibration.measured_steps import MeasuredSteps
from fsdpdoctor.simulate.calibration.partition import (
    VIRTUAL_ROOT,
    ModuleGap,
    Partition,
)
from fsdpdoctor.simulate.engine.step import (
    Checkpoint,
    Node,
    Segment,
)


def module_tree(seen: MeasuredSteps) -> tuple[Node, tuple[Segment, ...]]:
    """The root module, and the segments of compute that its tree names."""
    segments: list[Segment] = []
    device, host = _place_times(seen.device), _place_times(seen.host)
    root = _node(seen, seen.shape.root, device, host, segments)
    return root, tuple(segments)


def _place_times(parts: Sequence[Partition]) -> dict[ModuleGap, int]:
    """What each place takes: means over steps and micro-batches."""
    if not parts:
        return {}
    count = len(next(iter(parts[0].inside.values()), [0])) * len(parts)
    totals: dict[ModuleGap, int] = defaultdict(int)
    for part in parts:
        for place, times in part.inside.items():
            totals[place] += sum(times)
    return {place: round(total / count) for place, total in totals.items()}


def _node(
    seen: MeasuredSteps,
    unit: int,
    device: Mapping[ModuleGap, int],
    host: Mapping[ModuleGap, int],
    segments: list[Segment],
) -> Node:
    """A module, with the segments that some time was seen in."""
    children = seen.shape.children.get(unit, ())
    passes_on = bool(children) and children[-1] in seen.begun_before_parents
    items: list[int | Node] = []
    # Nothing is computed after a child whose output is the unit's own.
    for gap in range(len(children) + (not passes_on)):
        times = {
            what: device.get(ModuleGap(unit, gap, what), 0)
            for what in ("forward", "backward", "recompute")
        }
        launch = {
            what: host.get(ModuleGap(unit, gap, what), 0)
            for what in ("forward", "backward")
        }
        if any(times.values()) or any(launch.values()) or not children:
            items.append(len(segments))
            segments.append(
                Segment(
                    forward_ns=times["forward"],
                    backward_ns=times["backward"],
                    recompute_ns=times["recompute"],
                    host_forward_ns=launch["forward"],
                    host_backward_ns=launch["backward"],
                )
            )
        if gap < len(children):
            items.append(_node(seen, children[gap], device, host, segments))
    units = () if unit == VIRTUAL_ROOT else seen.shape.states[unit]
    return Node(
        units=tuple(seen.number[u] for u in units),
        items=tuple(items),
        checkpoint=_checkpoint(seen, unit),
        passes_output_on=passes_on,
        runs_backward=unit == VIRTUAL_ROOT
        or any(below in seen.backwards for below in seen.shape.walk(unit)),
    )


def _checkpoint(seen: MeasuredSteps, unit: int) -> Checkpoint:
    if unit == VIRTUAL_ROOT:
        return Checkpoint.NONE
    again = seen.recomputed()
    if unit in again:
        parents = [u for u, c in seen.shape.children.items() if unit in c]
        inherited = any(_encloses(seen, p) for p in parents)
        return Checkpoint.NONE if inherited else Checkpoint.REENTRANT
    if _encloses(seen, unit):
        return Checkpoint.NON_REENTRANT
    return Checkpoint.NONE


def _encloses(seen: MeasuredSteps, unit: int) -> bool:
    """Whether a module's recomputation is its own, and includes its children's.

    Then they all run again before the first of them runs backward. Of a single
    child it makes no difference whose it is.
    """
    if unit == VIRTUAL_ROOT:
        return False
    if seen.spec(unit).checkpointed and unit not in seen.recomputed():
        return True
    spans = seen.lines[-1].spans
    spans = spans.rows(spans.micro_batch == 0)
    children = seen.shape.children.get(unit, ())
    forward, backward = (of_kinds(spans, k) for k in (Kind.FORWARD, Kind.BACKWARD))
    again = forward.rows(forward.flags & Flag.RECOMPUTE != 0)
    again = again.rows(one_of(again.unit, children))
    backward = backward.rows(one_of(backward.unit, children))
    if len(again) < 2 or not len(backward):
        return False
    return bool(again.end_ns.max() <= backward.start_ns.min())
