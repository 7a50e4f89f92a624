"""What FSDP2's calls take the host, each without what is nested in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from fsdpdoctor.analysis.timeline import Timeline, of_kinds
from fsdpdoctor.intervals import Int64s, total_ns, union
from fsdpdoctor.schema import Hook, Kind, Spans
from fsdpdoctor.simulate.calibration.partition import COPIES, busy
from fsdpdoctor.simulate.engine.step import HostCosts


def host_costs(lines: Sequence[Timeline]) -> HostCosts:
    """Each hook's own time, as a mean over steps of one rank: nested hooks, and on the
    host's clock copies and stalls, taken out.
    """
    calls: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        for name, ns in _own_times(line):
            calls[name].append(ns)

    def each(name: str) -> int:
        return mean(calls.get(name, ()))

    return HostCosts(
        pre_forward_ns=each(Hook.PRE_FORWARD),
        unshard_ns=each("unshard"),
        post_forward_ns=each(Hook.POST_FORWARD),
        pre_backward_ns=each(Hook.PRE_BACKWARD),
        post_backward_ns=each(Hook.POST_BACKWARD),
        reduce_ns=each("reduce"),
        final_callback_ns=each(Hook.ROOT_POST_BACKWARD_CALLBACK),
    )


def mean(values: Iterable[int]) -> int:
    """The mean of some times, 0 of none."""
    known = list(values)
    return round(sum(known) / len(known)) if known else 0


def _own_times(line: Timeline) -> list[tuple[str, int]]:
    aside = _no_call(line)
    # A reshard is part of the hook around it, here as in the simulated one.
    rows = of_kinds(line.spans, Kind.HOOK, Kind.UNSHARD, Kind.REDUCE)
    starts, ends = rows.start_ns, rows.end_ns
    result: list[tuple[str, int]] = []
    for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        nested = (starts >= start) & (ends <= end)
        nested[at] = False
        first = np.searchsorted(aside[:, 1], start, side="right")
        last = np.searchsorted(aside[:, 0], end)
        out = union(
            np.concatenate((aside[first:last, 0], starts[nested])).clip(start, end),
            np.concatenate((aside[first:last, 1], ends[nested])).clip(start, end),
        )
        result.append((_name(line, rows, at), end - start - total_ns(out)))
    return result


def _no_call(line: Timeline) -> Int64s:
    """[N, 2]: when the thread was not in a call of FSDP2, though within one: on the
    host's clock it copies and waits itself, on a device's it does neither.
    """
    if line.data.header.clock != "host":
        return np.empty((0, 2), dtype=np.int64)
    spans, stalls = line.spans, line.stalls
    waits = union(stalls.start_ns, stalls.end_ns)
    flat = np.concatenate([busy(spans, *COPIES), busy(spans, Kind.COPY_IN), waits])
    return union(flat[:, 0], flat[:, 1])


def _name(line: Timeline, rows: Spans, at: int) -> str:
    kind = Kind(rows.kind[at])
    if kind == Kind.HOOK:
        return line.data.name(int(rows.name[at])) or ""
    return kind.key
