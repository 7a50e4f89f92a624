"""Steps that a file which breaks off does not hold whole.

A trace is not in order of time, so what is missing lies anywhere in it. Every launch
has device work: where the file has the call and not the work, it was cut off. Where
it is cut among the host's events, those after the last one are missing, whatever
device work came before them in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.importers.kineto.kernels import is_launch
from fsdpdoctor.importers.kineto.launches import DeviceWork, work_blocks
from fsdpdoctor.importers.kineto.steps import StepWindow, windows_at
from fsdpdoctor.importers.reader.trace_file import (
    Cat,
    Int64s,
    TraceFile,
    names_that,
    rows_named,
)
from fsdpdoctor.schema import NO_TIME, UNKNOWN, distinct, one_of
from fsdpdoctor.storage.spill import blocks, let_go


@dataclass(frozen=True, slots=True, kw_only=True)
class CutShort:
    """Launches whose work the file lacks, and the steps that are not whole."""

    launches: int = 0
    steps: frozenset[int] = frozenset()  # their places in the list of windows
    all_lost: bool = False  # no step of the file is whole

    def said(self, windows: Sequence[StepWindow]) -> str:
        """A sentence for a file that is cut."""
        whole = len(windows) - len(self.steps)
        judged = f"{whole} of {len(windows)} steps are whole and judged"
        where = (
            f"before the work of {self.launches:,} of its launches"
            if self.launches
            else "inside a step"
        )
        return f"the file ends {where}: " + (
            judged if whole else "no step is whole, so nothing is judged"
        )


def cut_short(
    trace: TraceFile, work: DeviceWork, windows: Sequence[StepWindow]
) -> CutShort:
    """What a file lacks of its steps; nothing where it does not break off."""
    if trace.health.truncated_at is None:
        return CutShort()
    done = distinct(trace.events.correlation[work.event])
    lost = [_lost(trace, rows, done) for rows in _launch_rows(trace)]
    times = np.concatenate([np.empty(0, dtype=np.int64), *lost])
    last_ns = _last_ns(trace)
    at = windows_at(np.concatenate((times, _unlaunched(trace, work, last_ns))), windows)
    after = {at for at, window in enumerate(windows) if window.end_ns > last_ns}
    steps = frozenset({*distinct(at[at != UNKNOWN]).tolist(), *after})
    return CutShort(
        launches=len(times), steps=steps, all_lost=len(steps) == len(windows)
    )


def _unlaunched(trace: TraceFile, work: DeviceWork, last_ns: int) -> Int64s:
    """To when the work is put whose launches came after the cut: nothing says when
    they were made, and it would lengthen the last step that is known.
    """
    found = [np.empty(0, dtype=np.int64)]
    for some in work_blocks(trace, work):
        after = trace.events.start_ns[some.event] > last_ns
        found.append(some.host_ns[after & (some.launched_ns == NO_TIME)])
    return np.concatenate(found)


def _last_ns(trace: TraceFile) -> int:
    """When the last event before the cut began. Rows are in the file's order."""
    events = trace.events
    rows = np.flatnonzero(events.cat != Cat.CAPTURE)
    return int(events.start_ns[rows[-1]]) if len(rows) else NO_TIME


def _launch_rows(trace: TraceFile) -> list[Int64s]:
    rows = rows_named(trace, (Cat.RUNTIME,), names_that(trace, is_launch))
    return [rows[block].astype(np.int64) for block in blocks(len(rows))]


def _lost(trace: TraceFile, rows: Int64s, done: Int64s) -> Int64s:
    """When the launches were made whose work is missing."""
    missing = ~one_of(trace.events.correlation[rows], done)
    times: Int64s = trace.events.start_ns[rows[missing]]
    let_go(trace.events)
    return times
