"""When, and from where, the host launched each piece of device work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.kineto.kernels import is_graph_launch
from fsdpdoctor.importers.reader.op_filter import (
    DEVICE_CATS,
    RowsById,
    rows_that,
    runtime_calls,
)
from fsdpdoctor.importers.reader.trace_file import (
    Bools,
    Events,
    Int64s,
    RowIds,
    TraceFile,
    names_that,
)
from fsdpdoctor.schema import NO_TIME, UNKNOWN, Table, column, distinct, is_any
from fsdpdoctor.storage.spill import Shelf, blocks, let_go


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceWork(Table):
    """Device work, by start, and its launches. Times are like those of `Events`."""

    event: npt.NDArray[np.int32] = column("int32", UNKNOWN)  # its row in Events
    launched_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)
    tid: npt.NDArray[np.int64] = column("int64", UNKNOWN)  # the launching thread
    in_graph: npt.NDArray[np.bool_] = column("bool", 0)  # as part of a CUDA graph
    by_call: npt.NDArray[np.bool_] = column("bool", 0)  # known from a runtime call,
    # to the nanosecond
    host_ns: npt.NDArray[np.int64] = column("int64", NO_TIME)  # like `launched_ns`,
    # estimated where unknown


def work_blocks(trace: TraceFile, work: DeviceWork) -> Iterator[DeviceWork]:
    """Device work a block at a time, so that what is made of it stays small."""
    for block in blocks(len(work)):
        yield work.rows(block)
        let_go(work, trace.events)


def find_launches(trace: TraceFile) -> DeviceWork:
    """Join device work to its launch: by correlation id, else by External id.

    Old traces repeat the correlation id as External id, which then says nothing.
    """
    events = trace.events
    work = _by_start(events)
    launches = _Launches(
        trace=trace,
        calls=runtime_calls(events),
        ops=RowsById.of(trace.ops.external, np.arange(len(trace.ops))),
        of_graph=names_that(trace, is_graph_launch),
    )
    columns = {name: at for name, at in DeviceWork.columns().items() if name != HOST_NS}
    shelf = Shelf(columns)
    for block in blocks(len(work)):
        shelf.put(launches.of(work[block]).items())
        let_go(events, trace.ops)
    found = shelf.take()
    del launches
    launched_ns = found["launched_ns"].view(np.int64)
    host_ns = _estimated(trace, work, launched_ns)
    return DeviceWork(**found, host_ns=host_ns)  # type: ignore[arg-type]


HOST_NS = "host_ns"


def without_arguments(events: Events, rows: RowIds) -> Bools:
    """Which device work says nothing of its launch, nor of its device."""
    bare = (events.correlation[rows] < 0) & (events.external[rows] < 0)
    found: Bools = bare & (events.device[rows] == UNKNOWN)
    return found


def _by_start(events: Events) -> RowIds:
    """The rows of device work in the order in which it began."""
    found = rows_that(events, "start_ns", lambda some: is_any(some.cat, *DEVICE_CATS))
    return found.rows[np.argsort(found.values, kind="stable")]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Launches:
    """Where launches are looked up."""

    trace: TraceFile
    calls: RowsById  # runtime calls by correlation id
    ops: RowsById  # operators by External id
    of_graph: npt.NDArray[np.bool_]  # by name

    def of(self, work: RowIds) -> dict[str, npt.NDArray[np.generic]]:
        """The columns of some device work, but for what is estimated."""
        events, ops = self.trace.events, self.trace.ops
        correlation, external = events.correlation[work], events.external[work]
        call = self.calls.find(correlation)
        by_call = call != UNKNOWN
        called = call[by_call]
        launched = np.full(len(work), NO_TIME, dtype=np.int64)
        tid = np.full(len(work), UNKNOWN, dtype=np.int64)
        in_graph = np.zeros(len(work), dtype=np.bool_)
        launched[by_call] = events.start_ns[called]
        tid[by_call] = events.tid[called]
        in_graph[by_call] = self.of_graph[events.name[called]]
        asked = np.where(by_call | (external == correlation), UNKNOWN, external)
        op = self.ops.find(asked)
        by_op = op != UNKNOWN
        launched[by_op] = ops.start_ns[op[by_op]]
        tid[by_op] = ops.tid[op[by_op]]
        return {
            "event": work,
            "launched_ns": launched,
            "tid": tid,
            "in_graph": in_graph,
            "by_call": by_call,
        }


def _estimated(trace: TraceFile, work: RowIds, launched_ns: Int64s) -> Int64s:
    """Launch times, the unknown ones from their neighbours: a stream keeps its order.

    What ran before a stream's first launch of the trace was launched before the
    capture. Where no launch is known at all, work's own start stands for it, as it
    does for work without arguments, which says nothing of its launch.
    """
    events = trace.events
    none_known = not (launched_ns != NO_TIME).any()
    before_capture = NO_TIME if none_known else int(events.start_ns.min()) - 1
    last: dict[int, int] = {}  # launch known, by stream
    shelf = Shelf({HOST_NS: np.dtype(np.int64)})
    for block in blocks(len(work)):
        launched, rows = launched_ns[block], work[block]
        if none_known:
            launched = events.start_ns[rows]
        else:
            bare = (launched == NO_TIME) & without_arguments(events, rows)
            launched = np.where(bare, events.start_ns[rows], launched)
            launched = _filled(launched, events.stream[rows], last, before_capture)
        shelf.put([(HOST_NS, launched)])
        let_go(events)
    return shelf.take()[HOST_NS]  # type: ignore[return-value]


def _filled(
    launched_ns: Int64s, stream: Int64s, last: dict[int, int], before_capture: int
) -> Int64s:
    """Launches with the unknown ones filled in. `last` goes from block to block."""
    filled = launched_ns.copy()
    known = launched_ns != NO_TIME
    for one in distinct(stream).tolist():
        on_stream = np.flatnonzero(stream == one)
        last_known = np.where(known[on_stream], np.arange(len(on_stream)), UNKNOWN)
        last_known = np.maximum.accumulate(last_known)
        filled[on_stream] = np.where(
            last_known >= 0,
            launched_ns[on_stream[last_known]],
            last.get(one, before_capture),
        )
        last[one] = int(filled[on_stream[-1]])
    return filled
