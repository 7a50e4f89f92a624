"""How many all-gathers a step's policy asks for."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from fsdpdoctor.analysis.timeline import Timeline
from fsdpdoctor.intervals import Int64s
from fsdpdoctor.schema import (
    UNKNOWN,
    Evidence,
    Flag,
    Kind,
    Phase,
    Spans,
    one_of,
)


def expected_all_gathers(line: Timeline) -> dict[tuple[int, int], int]:
    """All-gathers that a step's policy asks for, by (unit, phase).

    Per pass of the unit's root: forward 1, or 0 where the unit was still unsharded
    when the pass began; backward 1 if it resharded after forward, else 0. A gather by
    the script's own `unshard()` counts as asked for, and takes the place of FSDP2's
    where a call used it. Absent where the policy, or the units' calls, are not known.
    """
    if not {Evidence.CONFIG, Evidence.WINDOWS} <= line.data.evidence:
        return {}
    result: dict[tuple[int, int], int] = defaultdict(int)
    calls = line.of(Kind.FORWARD, Kind.BACKWARD)
    calls = calls.rows(calls.flags & (Flag.NO_GRAD | Flag.RECOMPUTE) == 0)
    windows = line.of(Kind.UNSHARDED)
    units = line.data.header.units
    for micro_batch in sorted(set(calls.micro_batch.tolist())):
        here = calls.rows(calls.micro_batch == micro_batch)
        starts: dict[int, list[int]] = {}  # of the passes of a tree
        for unit in sorted(set(here.unit.tolist()) - {UNKNOWN}):
            spec = units[unit]
            if spec.tree not in starts:
                starts[spec.tree] = _pass_starts(line, here, spec.tree, micro_batch)
            boundaries = starts[spec.tree]
            mine = here.rows(here.unit == unit)
            held = windows.rows(windows.unit == unit)
            forwards = np.sort(mine.start_ns[mine.kind == Kind.FORWARD])
            result[unit, Phase.FORWARD] += sum(
                _asks(held, forwards, t) for t in boundaries[: len(forwards)]
            )
            backwards = mine.start_ns[mine.kind == Kind.BACKWARD]
            gathers_again = (
                spec.reshard_after_forward not in (False, None)
                and spec.unshard_in_backward is not False
            )
            if gathers_again and len(backwards):
                asking = np.sort(backwards)[: len(boundaries)].tolist()
                result[unit, Phase.BACKWARD] += sum(
                    not _by_hand(held, t) for t in asking
                )
            elif len(backwards):
                result[unit, Phase.BACKWARD] += 0
    manual = line.of(Kind.ALL_GATHER)
    manual = manual.rows(manual.flags & Flag.MANUAL != 0)
    for unit, phase in zip(manual.unit, manual.phase, strict=True):
        # What the user's own unshard() asks for is expected.
        if (int(unit), int(phase)) in result:
            result[int(unit), int(phase)] += 1
    return _of_one_rank(line, result)


def _asks(windows: Spans, forwards: Int64s, pass_ns: int) -> bool:
    """Whether a pass that began then makes FSDP2 gather the unit of these windows: it
    was not unsharded, nor has the script gathered it for its forward since.
    """
    if (_open(windows, pass_ns)).any():
        return False
    first = int(np.searchsorted(forwards, pass_ns))
    return first == len(forwards) or not _by_hand(windows, int(forwards[first]))


def _by_hand(windows: Spans, call_ns: int) -> bool:
    """Whether what a call used, that began then, had been gathered by the script."""
    used = _open(windows, call_ns)
    return bool((windows.flags[used] & Flag.MANUAL != 0).any())


def _open(windows: Spans, ns: int) -> npt.NDArray[np.bool_]:
    result: npt.NDArray[np.bool_] = (windows.start_ns <= ns) & (windows.end_ns > ns)
    return result


def _of_one_rank(
    line: Timeline, expected: dict[tuple[int, int], int]
) -> dict[tuple[int, int], int]:
    """A unit whose shards are of one rank asks for no collective; older torch issues
    it all the same, and then no more than the policy says.
    """
    header = line.data.header
    gathers = line.of(Kind.ALL_GATHER)
    for unit, phase in expected:
        group = header.units[unit].shard_group
        if 0 <= group < len(header.groups) and header.groups[group].size == 1:
            issued = (gathers.unit == unit) & (gathers.phase == phase)
            asked = min(expected[unit, phase], int(issued.sum()))
            expected[unit, phase] = asked
    return dict(expected)


def _pass_starts(
    line: Timeline, calls: Spans, tree: int, micro_batch: int
) -> list[int]:
    """When each forward pass of a tree's root began, within one micro-batch.

    Where the source does not say, the first began with the micro-batch, a later one
    when its predecessor ended: a root's own gather lies between that time and the
    start of its forward.
    """
    units = line.data.header.units
    passes = line.of(Kind.ROOT_FORWARD)
    passes = passes.rows(
        (passes.micro_batch == micro_batch)
        & (passes.flags & Flag.NO_GRAD == 0)
        & (passes.unit != UNKNOWN)
    )
    trees = np.array([spec.tree for spec in units], dtype=np.int64)[passes.unit]
    if (trees == tree).any():
        return sorted(int(t) for t in passes.start_ns[trees == tree])
    roots = [at for at, u in enumerate(units) if u.is_root and u.tree == tree]
    forwards = calls.rows(one_of(calls.unit, roots) & (calls.kind == Kind.FORWARD))
    markers = line.of(Kind.MICRO_BATCH)
    markers = markers.rows(markers.micro_batch == micro_batch)
    if len(markers):
        first = int(markers.start_ns.min())
    elif len(calls):
        first = int(calls.start_ns.min())
    else:
        return []
    ends = np.sort(forwards.end_ns)[:-1] if len(forwards) else np.empty(0)
    return [first, *(int(t) for t in ends)]
