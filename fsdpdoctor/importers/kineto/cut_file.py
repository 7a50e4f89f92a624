"""Steps that a file which breaks off does not hold whole.

A trace is not in order of time, so what is missing lies anywhere in it. Every launch
has device work: where the file has the call and not the work, it was cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.importers.kineto.kernels import is_launch
from fsdpdoctor.importers.kineto.launches import DeviceWork
from fsdpdoctor.importers.kineto.steps import StepWindow, windows_at
from fsdpdoctor.importers.reader.trace_file import (
    Cat,
    Int64s,
    TraceFile,
    names_that,
    rows_named,
)
from fsdpdoctor.schema import UNKNOWN, distinct, one_of
from fsdpdoctor.storage.spill import blocks, let_go


@dataclass(frozen=True, slots=True, kw_only=True)
class CutShort:
    """Launches whose work the file lacks, and the steps that made them."""

    launches: int = 0
    steps: frozenset[int] = frozenset()  # their places in the list of windows

    def said(self, windows: Sequence[StepWindow]) -> str:
        """A sentence for a file that is cut."""
        whole = len(windows) - len(self.steps)
        judged = f"{whole} of {len(windows)} steps are whole and judged"
        return (
            f"the file ends before the work of {self.launches:,} of its launches: "
            + (judged if whole else "no step is whole, so nothing is judged")
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
    at = windows_at(times, windows)
    return CutShort(
        launches=len(times), steps=frozenset(distinct(at[at != UNKNOWN]).tolist())
    )


def _launch_rows(trace: TraceFile) -> list[Int64s]:
    rows = rows_named(trace, (Cat.RUNTIME,), names_that(trace, is_launch))
    return [rows[block].astype(np.int64) for block in blocks(len(rows))]


def _lost(trace: TraceFile, rows: Int64s, done: Int64s) -> Int64s:
    """When the launches were made whose work is missing."""
    missing = ~one_of(trace.events.correlation[rows], done)
    times: Int64s = trace.events.start_ns[rows[missing]]
    let_go(trace.events)
    return times
