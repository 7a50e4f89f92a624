"""The series that the timeline draws: what colour a span has, and in which row."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fsdpdoctor.schema import (
    Kind,
    Lane,
    Phase,
    Spans,
)


class Row(IntEnum):
    """A horizontal line of a rank, in the order of the screen."""

    EXPOSED = 0  # compute stood still for a collective
    COMPUTE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_REDUCE = 4
    OTHER_COMM = 5
    COPIES = 6
    HOST = 7
    UNSHARDED_ROOT = 8
    UNSHARDED_EVEN = 9  # two rows, so that neighbouring units' overlap shows
    UNSHARDED_ODD = 10
    STEP = 11  # the rulers
    MICRO_BATCH = 12


ROW_WORDS = {
    Row.COMPUTE: "compute",
    Row.ALL_GATHER: Kind.ALL_GATHER.label,
    Row.REDUCE_SCATTER: Kind.REDUCE_SCATTER.label,
    Row.ALL_REDUCE: Kind.ALL_REDUCE.label,
    Row.OTHER_COMM: "other comm",
    Row.COPIES: "copies",
    Row.HOST: "host",
}
"""What stands at the rows that have room for it."""

WAITS = "waiting for a rank"
"""What a collective does before the last rank has arrived."""


class SeriesSpec(NamedTuple):
    """One colour in one row."""

    row: Row
    name: str  # stands in the area statistics and in the legend
    colour: str  # a key of the palette


SERIES: tuple[SeriesSpec, ...] = (
    SeriesSpec(Row.EXPOSED, "exposed all-gather", "exposed"),
    SeriesSpec(Row.EXPOSED, "exposed reduce-scatter", "exposed"),
    SeriesSpec(Row.EXPOSED, "exposed all-reduce", "exposed"),
    SeriesSpec(Row.COMPUTE, "forward", "forward"),
    SeriesSpec(Row.COMPUTE, "backward", "backward"),
    SeriesSpec(Row.COMPUTE, "optimizer", "optimizer"),
    SeriesSpec(Row.COMPUTE, "copy-out", "copy_out"),
    SeriesSpec(Row.COMPUTE, "reduce copy-in", "copy_in"),
    SeriesSpec(Row.COMPUTE, "other compute", "kernel"),
    SeriesSpec(Row.ALL_GATHER, "all-gather", "all_gather"),
    SeriesSpec(Row.ALL_GATHER, f"all-gather, {WAITS}", "all_gather_wait"),
    SeriesSpec(Row.REDUCE_SCATTER, "reduce-scatter", "reduce_scatter"),
    SeriesSpec(Row.REDUCE_SCATTER, f"reduce-scatter, {WAITS}", "reduce_scatter_wait"),
    SeriesSpec(Row.ALL_REDUCE, "all-reduce", "all_reduce"),
    SeriesSpec(Row.ALL_REDUCE, f"all-reduce, {WAITS}", "all_reduce_wait"),
    SeriesSpec(Row.OTHER_COMM, "other collective", "other_comm"),
    SeriesSpec(Row.COPIES, "copy-in", "copy_in"),
    SeriesSpec(Row.COPIES, "memcpy and memset", "memcpy"),
    SeriesSpec(Row.HOST, "issue", "issue"),
    SeriesSpec(Row.HOST, "hook", "hook"),
    SeriesSpec(Row.HOST, "sync call", "sync"),
    SeriesSpec(Row.HOST, "pause", "pause"),
    SeriesSpec(Row.HOST, "input wait", "input"),
    SeriesSpec(Row.UNSHARDED_ROOT, "root unsharded", "unsharded"),
    SeriesSpec(Row.UNSHARDED_EVEN, "unit unsharded", "unsharded"),
    SeriesSpec(Row.UNSHARDED_ODD, "next unit unsharded", "unsharded"),
    SeriesSpec(Row.STEP, "step", "ruler"),
    SeriesSpec(Row.MICRO_BATCH, "micro-batch", "ruler"),
)

INDEX = {spec.name: i for i, spec in enumerate(SERIES)}
NO_SERIES = -1

EXPOSED_SERIES = {
    Kind.ALL_GATHER: INDEX["exposed all-gather"],
    Kind.REDUCE_SCATTER: INDEX["exposed reduce-scatter"],
    Kind.ALL_REDUCE: INDEX["exposed all-reduce"],
}
"""By the collective that was waited for."""
WAITING = {
    INDEX["all-gather"]: INDEX[f"all-gather, {WAITS}"],
    INDEX["reduce-scatter"]: INDEX[f"reduce-scatter, {WAITS}"],
    INDEX["all-reduce"]: INDEX[f"all-reduce, {WAITS}"],
}
_BY_KIND = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.OPTIMIZER: "optimizer",
    Kind.CLIP: "optimizer",
    Kind.COPY_OUT: "copy-out",
    Kind.REDUCE_COPY_IN: "reduce copy-in",
    Kind.COPY_IN: "copy-in",
    Kind.MEMCPY: "memcpy and memset",
    Kind.MEMSET: "memcpy and memset",
    Kind.HOOK: "hook",
    Kind.RESHARD: "hook",
    Kind.LAUNCH: "hook",
    Kind.UNSHARD: "issue",
    Kind.REDUCE: "issue",
    Kind.SYNC: "sync call",
    Kind.GC: "pause",
    Kind.CHECKPOINT_SAVE: "pause",
    Kind.CHECKPOINT_LOAD: "pause",
    Kind.INPUT: "input wait",
    Kind.MICRO_BATCH: "micro-batch",
}
_BY_LANE = {
    Lane.ALL_GATHER: "all-gather",
    Lane.REDUCE_SCATTER: "reduce-scatter",
    Lane.ALL_REDUCE: "all-reduce",
    Lane.OTHER_COMM: "other collective",
}
_KERNEL_BY_PHASE = {
    Phase.OTHER: "other compute",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
}


def series_of(spans: Spans, *, traced: bool) -> npt.NDArray[np.int8]:
    """For each span its index in `SERIES`; waits and unknown kinds have none.

    Compute is what the analysis calls so: of a trace its kernels, of a recorded
    run the model's and the optimizer's own time.
    """
    table = np.full(128, NO_SERIES, dtype=np.int8)
    for kind, name in _BY_KIND.items():
        table[kind] = INDEX[name]
    if traced:
        for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER, Kind.CLIP):
            table[kind] = NO_SERIES
    series = table[spans.kind]
    for lane, name in _BY_LANE.items():
        series[spans.lane == lane] = INDEX[name]
    kernels = spans.kind == Kind.KERNEL
    for phase, name in _KERNEL_BY_PHASE.items():
        series[kernels & (spans.phase == phase)] = INDEX[name]
    return series
